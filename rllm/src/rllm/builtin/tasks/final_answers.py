"""The final answer in a response: one stated order of search for all rewards.

`read_answer` is the entry for `rllm eval`, for runs and for tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

LONGEST_RESPONSE = 100_000
"""Number of characters at the end of a response that are searched."""
LONGEST_ANSWER = 2_000
"""Maximum number of characters of an answer, or of a last line."""
MAX_BOXES = 50
Place = Literal["box", "####", "tag", "statement", "last line", "whole response"]

REASONING = re.compile(r"<(think|thinking|thought|reasoning|scratchpad)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
END_OF_REASONING = re.compile(r"</(?:think|thinking|thought|reasoning|scratchpad)>", re.IGNORECASE)
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
TAG = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
STATED = re.compile(
    r"\banswers?\b(?:\s+(?:to|for|of)\s[^.:\n=]{1,100}?)?"
    r"(?:\s*(?:is|are|was|equals|would be|will be|must be|should be)\b(?:\s*:)?|[\s*_\"]*[:=\uff1a]|\s+[-\u2013]\s)"
    r"|(?:\u7b54\u6848|\u9009)(?:\u662f|\u4e3a|\u9009|\u5e94\u4e3a)?\s*[:\uff1a]?"
    r"|(?:\u7b54\u3048?|\uc815?\ub2f5)\s*(?:\u306f|\uc740|[:\uff1a])"
    r"|\b(?:respuesta|r\u00e9ponse|antwort|resposta|risposta|\u043e\u0442\u0432\u0435\u0442)"
    r"\s*(?:(?:es|est|ist|\u00e9|\u00e8)\b|:)",
    re.IGNORECASE,
)
"""``answer is``, ``answer:`` and their Chinese forms."""
ADVERB = re.compile(
    r"\s*(?:(?:simply|therefore|thus|hence|then|exactly|clearly|indeed|just|equal to|approximately|about|definitely"
    r"|certainly|probably|likely|surely|roughly|given by|option|choice|letter)\b\s*:?|[:*_,])\s*",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(
    r"\u3002|(?<!\bJan)(?<!\bFeb)(?<!\bMar)(?<!\bApr)(?<!\bAug)(?<!\bSep)(?<!\bSept)(?<!\bOct)(?<!\bNov)(?<!\bDec)[.!?]"
    r"(?=\s+\S|[\"')*\]]*\s*$)|\n|</?answer>",
    re.IGNORECASE,
)
CLAUSE = re.compile(
    r"\s*,?\s+(?:because|since|so|which|whereas|where|given that|as (?:the|it|we|[a-z]+ is)|that is|i\.e\.)\b"
    r"|\s*,\s+(?:and\s+)?not\s"
    r"|\s+(?:[-\u2013\u2014]{1,2}|\()\s*(?!mod\b)(?=[A-Za-z]{2,}[ )])|\s+//",
    re.IGNORECASE,
)
NEGATION = re.compile(
    r"(?:\b(?:not|never|cannot|neither|nor|wrong|incorrect|false|except|unless|(?<!no )doubt|rather than|instead of)\b"
    r"|n['\u2019]t\b|\u4e0d\u662f)",
    re.IGNORECASE,
)
HYPOTHESIS = re.compile(
    r"\b(?:suppose|assum(?:e|es|ing)|let|if|says?|said|claims?|wrote|tempting|mistake|expected|previous)\b",
    re.IGNORECASE,
)
WITHDRAWN = re.compile(
    r"(?:^|[.!?\n])[\W_]*(?:wait|correction|edit|oops|sorry|hmm|contradiction|no,|actually,)"
    r"|^[.!?\s(]*(?:or|maybe|perhaps|no|actually|but|alternatively)\b[^.\n]*(?:\d|\\|\b[A-J]\b)"
    r"|^\W*(?:which|but|and it)\b[^.!?\n]*\b(?:wrong|incorrect|false)\b"
    r"|\b(?:this|that|it|which|my answer|the answer)(?:\s+(?:is|was)|['\u2019]s)?\s*"
    r"(?:(?:not|n['\u2019]t)\s+(?:right|correct|true)|wrong|incorrect|false|refuted)\b",
    re.IGNORECASE,
)
"""Text after an answer that withdraws it."""
NOT_BUT = re.compile(r"not\s+[^\s,]{1,60}(?:,?\s+but|,\s+it is)\s+", re.IGNORECASE)
UNSURE = re.compile(
    r"\b(?:either|maybe|perhaps|possibly|alternatively|could|might|may be|one of|anything|any|including|such as"
    r"|all numbers|guess(?:es)?|(?:or|and) (?:maybe|perhaps|possibly|it|is it|else)|any of|between)\b|\?\s*$",
    re.IGNORECASE,
)
RESULT = re.compile(
    r"(?:\b(?:is|are|was|were|equals|gives|get|have|be|becomes|makes|at|a total of"
    r"|(?:simplifies|evaluates|equal|comes) to)\b"
    r"\s*:?|:(?!\d)|\u2192|\\(?:implies|Rightarrow|to)\b|=>)\s*(?:(?:exactly|about|approximately|only|just)\s+)?",
    re.IGNORECASE,
)
VERB = re.compile(
    rf"(?:{RESULT.pattern}|=\s*"
    r"|\b(?!(?:as|hers|his|less|minus|plus|problems|says|times|various|whereas)\b)[a-z]+(?:s|ed)\s+"
    r"|\b(?:had|made|sold|spent|find|found|obtain|(?:will|can|must|would)\s+[a-z]+)\s+"
    r"|\ba (?!multiple|factor|power|divisor|fraction|half|third|quarter)[a-z]+ of\s+"
    r"|\b(?:rose|fell|grew|increase[sd]?|decrease[sd]?|dropped) (?:by|to)\s+)"
    r"(?:(?:exactly|about|approximately|only|just|a|the)\s+)*$",
    re.IGNORECASE,
)
"""The end of a sentence's text before its only number, such as ``So she makes``."""
IS_THE_ANSWER = re.compile(
    r"\s+(?:is|must be|as)\s+(?:the|our|my)\s+(?:final |correct |right )?answer\W*$", re.IGNORECASE
)
SPAN = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<![\\$])\$([^$\n]{1,2000})\$|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]", re.DOTALL
)
SPECIAL_TOKEN = re.compile(r"(?:<\|channel\|>\w+)?<\|\w+\|>|</s>")
MARKUP = re.compile(r"</?(?:b|p|i|em|strong)>| *[\u2705\U0001f300-\U0001faff] *")
BOLD = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)")
NOISE = re.compile(
    r"^\s*(?:[-=_*`~#]{2,}\w*|</?\w+>|\$\$|\\\]|\\\[|\\end\{[a-z*]+\}"
    r"|[Qq]\.?E\.?D\.?|\W*(?:I )?[Hh]ope (?:this|that|it) helps\W*)?\s*$"
)
NUMBER = re.compile(
    r"(?<![\w.:])(?:[$\u20ac\u00a3]\s?)?[-\u2212+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?\s*(?:\\?%)?(?![\w:])"
)
SO = re.compile(r"^(?:so|thus|therefore|hence|finally|then|and|we get|we have|in total)\b,?\s*", re.IGNORECASE)
CHANGES = re.compile(r"\b(?:and|half|squared|cubed|factorial|times|plus|minus|more|less|than|percent|or)\b", re.I)
"""Text after a number that makes a different number of it."""
YES_NO = re.compile(r"(yes|no)\b[,.;:!]", re.IGNORECASE)


@dataclass(frozen=True)
class FinalAnswer:
    """The final answer of a response, or the reason why it has none."""

    text: str | None
    """The answer as the response writes it."""
    place: Place | None = None
    """The form in which it was found."""
    reason: str = ""
    """The reason why the response has no answer."""
    others: tuple[str, ...] = ()
    """Final answers of the same response in other places. The response is right only if all of them are right."""

    @property
    def all_texts(self) -> tuple[str, ...]:
        """Every final answer of the response."""
        return () if self.text is None else (self.text, *self.others)


class _NoAnswerError(Exception):
    pass


def remove_reasoning(text: str) -> str:
    """Return the end of a response, without its reasoning. A box or a number in the reasoning is no answer."""
    text = cut_reasoning(text[-LONGEST_RESPONSE:])
    return re.sub(r"[^\S\n]+", " ", re.sub(r"\n\s*\n", "\n\n", text)).strip()


def cut_reasoning(text: str) -> str:
    """Return a response without its reasoning, with all white space."""
    text = REASONING.sub("", text) if "<" in text else text
    ends = [match.end() for match in END_OF_REASONING.finditer(text)]
    return text[ends[-1] :] if ends else text


def find_answer(text: str, is_answer: Callable[[str], bool], read_line: Callable[[str], str | None]) -> FinalAnswer:
    """Find the final answer.

    The order of search is: a box, ``####``, ``<answer>`` tags, ``answer is`` or ``answer:``, the last line. The first
    place with an answer decides. Places after it count only in the text after the answer, which may also withdraw it.

    Args:
        text: the response.
        is_answer: True if a text is an answer, and not a part of a sentence.
        read_line: returns the answer in the last line, or None.
    """
    text = MARKUP.sub("", SPECIAL_TOKEN.sub("\n", BOLD.sub("", remove_reasoning(text)))).strip()
    if not text:
        return FinalAnswer(None, reason="it is empty")
    found: list[tuple[Place, str]] = []
    end = 0
    searches: list[tuple[Place, Iterator[tuple[str, int]]]] = [
        ("box", _boxes(text)),
        ("####", _after_hashes(text, is_answer)),
        ("tag", _tags(text, is_answer, read_line)),
        ("statement", _statements(text, is_answer)),
    ]
    try:
        for place, answers in searches:
            for answer, position in answers:
                if not found or place == found[0][0] or (position > end and is_answer(answer)):
                    found.append((place, answer))
                    end = max(end, position)
        if not found:
            last = read_line(_last_line(text))
            if last is None:
                raise _NoAnswerError("it has no final answer")
            found = [("last line", last)]
        elif WITHDRAWN.search(text[end:]):
            raise _NoAnswerError("its answer is withdrawn")
    except _NoAnswerError as error:
        return FinalAnswer(None, reason=str(error))
    (place, first), *rest = dict.fromkeys(found)
    others = tuple(dict.fromkeys(each for _, each in rest if each != first))
    return FinalAnswer(first, place, others=others)


def _boxes(text: str) -> Iterator[tuple[str, int]]:
    """Yield the contents of boxes and their ends. Boxes that are joined by ``and`` or a comma are one answer."""
    joined, last_end = "", -1
    boxes = list(BOX.finditer(text))
    if len(boxes) > MAX_BOXES:
        raise _NoAnswerError(f"it has over {MAX_BOXES} boxes")
    for match in boxes:
        if match.start() < last_end:
            continue
        end = closing_brace(text, match.end() - 1)
        if end < 0:
            continue
        start = match.start()
        before = text[max(_sentence_start(text, start), last_end, 0) : start]
        after = SENTENCE_END.split(text[end + 1 :], maxsplit=1)[0]
        if _is_denied(before) or re.match(r"[\s$).]*(?:is|was|are)?\s*(?:not|n't|wrong|incorrect|false)\b", after):
            raise _NoAnswerError("its box is negated")
        content = text[match.end() : end].strip()
        between = text[last_end + 1 : start] if last_end >= 0 else None
        if (
            between is not None
            and re.fullmatch(
                r"[\s$,;]*(?:,|and|or|\\text\{\s*(?:and|or)\s*\}|\\quad|\\qquad)?[\s$,;]*(?:x\s*=\s*)?", between
            )
            and re.search(r"and|or|,", between)
        ):
            joined += ", " + content
        else:
            if joined:
                yield joined, last_end + 1
            joined = content
        last_end = end
    if boxes and last_end < 0:
        raise _NoAnswerError("its box is not closed")
    if last_end >= 0:
        if not joined:
            raise _NoAnswerError("its box is empty")
        yield joined, last_end + 1


def _is_denied(before: str) -> bool:
    """True if the clause before an answer negates it, or only assumes it."""
    clause = re.split(r"[,;:]|\b(?:so|hence|thus|therefore|then)\b", before)[-1]
    return bool(NEGATION.search(clause) or HYPOTHESIS.search(clause))


def closing_brace(text: str, start: int) -> int:
    """Return the position of the brace that closes the one at `start`, or -1."""
    level, position = 0, start
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == "{":
            level += 1
        elif text[position] == "}":
            level -= 1
            if level == 0:
                return position
        position += 1
    return -1


def _sentence_start(text: str, position: int) -> int:
    starts = [match.end() for match in SENTENCE_END.finditer(text, max(0, position - 300), position)]
    return starts[-1] if starts else max(0, position - 300)


def _statements(text: str, is_answer: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
    """Yield the answers after ``answer is`` and ``answer:``, and their ends."""
    is_negated = is_stated = False
    end, rest = 0, MAX_BOXES
    for match in STATED.finditer(text):
        if match.start() < end:
            continue
        answer, end, answer_end = _after_statement(text, match.end())
        before = text[_sentence_start(text, match.start()) : match.start()]
        if BOX.search(answer):
            continue
        answer = NOT_BUT.sub("", answer)
        if _is_denied(before) or re.match(r"(?:[a-z]+ly\s+)?(?:not|n't|never)\b(?=.*\d)", answer, re.IGNORECASE):
            is_negated = True
            continue
        if UNSURE.search(answer) and not is_answer(answer):
            raise _NoAnswerError("it has several possible answers")
        if not is_answer(answer):
            # "Final answer: The answer is 42" has a statement inside.
            end, rest = (match.end(), rest - 1) if rest else (end, 0)
            continue
        is_stated = True
        yield answer, answer_end
    if is_negated and not is_stated:
        raise _NoAnswerError("its answer is negated")


def _after_statement(text: str, start: int) -> tuple[str, int, int]:
    """Return the answer that a statement introduces, the end of its sentence, and the end of the answer."""
    while adverb := ADVERB.match(text, start):
        if adverb.end() == start:
            break
        start = adverb.end()
    while start < len(text) and text[start].isspace():
        start += 1
    if span := SPAN.match(text, start):
        # Mathematics may have several lines. A unit may come after it.
        end = span.end()
        sentence = SENTENCE_END.search(text, end)
        rest = text[end : sentence.start() if sentence else len(text)]
        stop = sentence.end() if sentence else len(text)
        if not re.search(r"\w", rest):
            return _remove_clause(text[start:end], rest), stop, end
    sentence = SENTENCE_END.search(text, start)
    stop = sentence.end() if sentence else len(text)
    if sentence and sentence[0] == "?":
        raise _NoAnswerError("its answer is a question")
    answer = text[start : sentence.start() if sentence else len(text)][:LONGEST_ANSWER]
    answer = _remove_clause(answer, "")
    return answer, stop, start + len(answer)


def _remove_clause(answer: str, rest: str) -> str:
    """Return an answer without the clause that explains it.

    Raises:
        _NoAnswerError: the clause has a different answer.
    """
    cut = CLAUSE.search(answer)
    explained = answer[: cut.start()] if cut else answer
    rest = (answer[cut.start() :] if cut else "") + rest
    if re.match(r"[\s(,-]*(?:or|but|maybe|perhaps|and)\b|.*\b(?:else|otherwise)\b", rest) and re.search(r"\d|\\", rest):
        raise _NoAnswerError("it has several possible answers")
    explained = re.sub("(?:\u3067\u3059|\uc785\ub2c8\ub2e4)$", "", explained.strip(" *_`:"))
    return IS_THE_ANSWER.sub("", explained if "{" in explained else explained.rstrip("} "))


def _after_hashes(text: str, is_answer: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
    """Yield the answers after ``####``, as in GSM8K. A heading is no answer."""
    for match in re.finditer(r"####([^\n]*)", text):
        answer = match[1].strip(" #*")
        if answer and (
            not text[match.end() :].strip() or (is_answer(answer) and re.search(r"\d|^\W*[A-Z]\W*$|\\", answer))
        ):
            yield answer, match.end()


def _tags(
    text: str, is_answer: Callable[[str], bool], read_line: Callable[[str], str | None]
) -> Iterator[tuple[str, int]]:
    for match in TAG.finditer(text):
        content = match[1].strip()
        if not content:
            raise _NoAnswerError("its <answer> is empty")
        if BOX.search(content) or STATED.search(content):
            continue
        if is_answer(content):
            yield content, match.end()
        elif (answer := read_line(_last_line(content))) is not None:
            yield answer, match.end()
        else:
            raise _NoAnswerError("its <answer> has no answer")


def _last_line(text: str) -> str:
    """Return the last line with text. Lines inside one formula are one line."""
    text = text[-2 * LONGEST_ANSWER :]
    text = SPAN.sub(lambda match: match[0].replace("\n", " ") if "\n" in match[0] else match[0], text)
    lines = [line.strip() for line in text.splitlines() if not NOISE.match(line)]
    return lines[-1][-LONGEST_ANSWER:] if lines else ""


def read_sentence(line: str, is_answer: Callable[[str], bool]) -> str | None:
    """Return the answer in a last line, which is an answer, or a sentence with one answer."""
    line = SO.sub("", line.strip().strip("*_#> ").strip())
    if is_answer(line):
        return line
    if YES_NO.match(line) and len(re.findall(r"\b(?:yes|no)\b", line, re.IGNORECASE)) == 1:
        return line[: 3 if line[0] in "yY" else 2]
    ends = [match.end() for match in SENTENCE_END.finditer(line) if line[match.end() :].strip(" *_\"'")]
    line = line[ends[-1] :].strip() if ends else line
    line = SO.sub("", IS_THE_ANSWER.sub("", line))
    if is_answer(line):
        return line
    line = re.sub(r",\s+(?:and\s+)?not\s+\S+$", "", line)
    if NEGATION.search(line) or UNSURE.search(line) or HYPOTHESIS.search(line) or re.search(r"\banswer\b", line, re.I):
        return None
    cut = CLAUSE.search(line)
    sentence = line[: cut.start()] if cut and cut.start() > 0 else line
    if re.search(r"\d|\\", sentence) and is_answer(sentence):
        return sentence
    for match in reversed(list(RESULT.finditer(sentence))):
        answer = sentence[match.end() :].strip(" *_.`")
        is_stated = match[0].lower().strip(" :") in ("is", "are", "was", "")
        if answer and (is_stated or re.search(r"\d|\\", answer)) and is_answer(answer):
            return answer
    found = [*SPAN.finditer(line), *NUMBER.finditer(SPAN.sub(lambda span: " " * len(span[0]), line))]
    if len({each[0].strip() for each in found}) != 1 or not is_answer(found[0][0].strip()):
        return None
    return (
        found[0][0].strip()
        if VERB.search(line[: found[0].start()]) and not CHANGES.search(line, found[0].end())
        else None
    )


def read_answer(text: str, form: Literal["math", "choice", "exact"], letters: str = "ABCDE") -> FinalAnswer:
    """Return the final answer of a response as a reward with this form reads it.

    Args:
        text: the response, which may contain its reasoning.
        form: the reward's name.
        letters: letters of the options, for `choice`.
    """
    if form == "math":
        from rllm.builtin.tasks.math_reward import find_math

        return find_math(text)
    if form == "choice":
        from rllm.builtin.tasks.choice import find_letter

        return find_letter(text, letters)
    return FinalAnswer(remove_reasoning(text), "whole response")
