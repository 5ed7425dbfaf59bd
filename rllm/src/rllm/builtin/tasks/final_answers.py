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
Place = Literal["box", "statement", "####", "tag", "last line", "whole response"]

REASONING = re.compile(r"<(think|thinking|thought|reasoning|scratchpad)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
END_OF_REASONING = re.compile(r"</(?:think|thinking|thought|reasoning|scratchpad)>", re.IGNORECASE)
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
TAG = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)
STATED = re.compile(
    r"\banswers?\b(?:\s+(?:to|for|of)\s[^.:\n=]{1,100}?)?"
    r"(?:\s*(?:is|are|was|equals|would be|will be|must be|should be)\b(?:\s*:)?|[\s*_]*[:=\uff1a])"
    r"|(?:\u7b54\u6848|\u9009)(?:\u662f|\u4e3a|\u9009|\u5e94\u4e3a)?\s*[:\uff1a]?",
    re.IGNORECASE,
)
"""``answer is``, ``answer:`` and their Chinese forms."""
ADVERB = re.compile(
    r"\s*(?:(?:simply|therefore|thus|hence|then|exactly|clearly|indeed|just|equal to|approximately|about|definitely"
    r"|certainly|probably|likely|surely|given by|option|choice|letter)\b\s*:?|[:*_,])\s*",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(
    r"\u3002|(?<!\bJan)(?<!\bFeb)(?<!\bMar)(?<!\bApr)(?<!\bAug)(?<!\bSep)(?<!\bSept)(?<!\bOct)(?<!\bNov)(?<!\bDec)[.!?]"
    r"(?=\s+\S|[\"')*\]]*\s*$)|\n|</?answer>",
    re.IGNORECASE,
)
CLAUSE = re.compile(
    r"\s*,?\s+(?:because|since|so|which|whereas|where|when|if|given that|as (?:the|it|we|[a-z]+ is)|that is|i\.e\.)\b"
    r"|\s*,\s+(?:and\s+)?not\s"
    r"|\s+(?:[-\u2013\u2014]{1,2}|\()\s*(?=[A-Za-z]{2,}[ )])|\s+//",
    re.IGNORECASE,
)
NEGATION = re.compile(
    r"(?:\b(?:not|never|cannot|neither|nor|wrong|incorrect|false|except|unless|doubt|rather than|instead of)\b"
    r"|n['\u2019]t\b|\u4e0d\u662f)",
    re.IGNORECASE,
)
UNSURE = re.compile(
    r"\b(?:either|maybe|perhaps|possibly|alternatively|could|might|may be|one of|anything|any|including|such as"
    r"|all numbers|guess(?:es)?|(?:or|and) (?:maybe|perhaps|possibly|it|is it|else)|any of|between)\b|\?\s*$",
    re.IGNORECASE,
)
CORRECTION = re.compile(
    r"\s*(?:\(\s*)?(?:or|or maybe|maybe|perhaps|no|wait|actually|but|alternatively|hmm)\b", re.IGNORECASE
)
RESULT = re.compile(
    r"\b(?:is|are|was|equals|gives|get|have|be|becomes|makes|of|total|to|at|on)\b\s*:?|:(?!\d)|\u2192|\\(?:implies|Rightarrow|to)\b|=>",
    re.I,
)
IS_THE_ANSWER = re.compile(
    r"\s+(?:is|must be|as)\s+(?:the|our|my)\s+(?:final |correct |right )?answer\W*$", re.IGNORECASE
)
SPAN = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<![\\$])\$([^$\n]{1,2000})\$|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]", re.DOTALL
)
BOLD = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)")
NOISE = re.compile(r"^\s*(?:[-=_*`~#]{2,}\w*|</?\w+>|\$\$|\\\]|\\\[|\\end\{[a-z*]+\}|[Qq]\.?E\.?D\.?)?\s*$")
NUMBER = re.compile(
    r"(?<![\w.:])(?:[$\u20ac\u00a3]\s?)?[-\u2212+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?\s*(?:\\?%)?(?![\w:])"
)
SO = re.compile(r"^(?:so|thus|therefore|hence|finally|then|and|we get|we have)\b,?\s*", re.IGNORECASE)
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

    The order of search is: a box, ``answer is`` or ``answer:``, ``####``, ``<answer>`` tags, the last line.

    Args:
        text: the response.
        is_answer: True if a text is an answer, and not a part of a sentence.
        read_line: returns the answer in the last line, or None.
    """
    text = BOLD.sub("", remove_reasoning(text))
    if not text:
        return FinalAnswer(None, reason="it is empty")
    found: list[tuple[Place, str]] = []
    try:
        boxes = list(_boxes(text))
        found += [("box", each) for each in boxes]
        stated = [each if is_answer(each) else read_line(each) or each for each in _statements(text)]
        found += [("statement", each) for each in stated if not boxes or is_answer(each)]
        found += [("####", each) for each in _after_hashes(text, is_answer)]
        found += [("tag", each) for each in _tags(text, is_answer, read_line)]
        if not found:
            line = _last_line(text)
            answer = read_line(line) if line else None
            if answer is None:
                raise _NoAnswerError("it has no final answer")
            found = [("last line", answer)]
    except _NoAnswerError as error:
        return FinalAnswer(None, reason=str(error))
    (place, first), *rest = dict.fromkeys(found)
    others = tuple(dict.fromkeys(each for _, each in rest if each != first))
    return FinalAnswer(first, place, others=others)


def _boxes(text: str) -> Iterator[str]:
    """Yield the contents of boxes. Boxes that are joined by ``and``, ``or`` or a comma are one answer."""
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
        if NEGATION.search(re.split("[,;:]", before)[-1]) or re.match(
            r"[\s$).]*(?:is|was|are)?\s*(?:not|n't|wrong|incorrect|false)\b", after
        ):
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
                yield joined
            joined = content
        last_end = end
    if boxes and last_end < 0:
        raise _NoAnswerError("its box is not closed")
    if last_end >= 0:
        if not joined:
            raise _NoAnswerError("its box is empty")
        yield joined


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


def _statements(text: str) -> Iterator[str]:
    """Yield the answers after ``answer is`` and ``answer:``."""
    is_negated = is_stated = False
    end = 0
    for match in STATED.finditer(text):
        if match.start() < end:
            continue
        answer, end = _after_statement(text, match.end())
        before = text[_sentence_start(text, match.start()) : match.start()]
        clause = re.split(r"[,;:]", before)[-1]
        if BOX.search(answer):
            continue
        if NEGATION.search(clause) or re.match(r"(?:[a-z]+ly\s+)?(?:not|n't|never)\b(?=.*\d)", answer, re.IGNORECASE):
            is_negated = True
            continue
        if UNSURE.search(answer):
            raise _NoAnswerError("it has several possible answers")
        if answer:
            is_stated = True
            yield answer
    if is_negated and not is_stated:
        raise _NoAnswerError("its answer is negated")


def _after_statement(text: str, start: int) -> tuple[str, int]:
    """Return the answer that a statement introduces, and the end of its sentence."""
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
            return _remove_clause(text[start:end], rest, text[stop:]), stop
    sentence = SENTENCE_END.search(text, start)
    stop = sentence.end() if sentence else len(text)
    if sentence and sentence[0] == "?":
        raise _NoAnswerError("its answer is a question")
    answer = text[start : sentence.start() if sentence else len(text)][:LONGEST_ANSWER]
    return _remove_clause(answer, "", text[stop:]), stop


def _remove_clause(answer: str, rest: str, after: str) -> str:
    """Return an answer without the clause that explains it.

    Raises:
        _NoAnswerError: the clause, or the next sentence, has a different answer.
    """
    cut = CLAUSE.search(answer)
    explained = answer[: cut.start()] if cut else answer
    rest = (answer[cut.start() :] if cut else "") + rest
    if re.match(r"[\s(,-]*(?:or|but|maybe|perhaps|and)\b|.*\b(?:else|otherwise)\b", rest) and re.search(r"\d|\\", rest):
        raise _NoAnswerError("it has several possible answers")
    if (
        CORRECTION.match(after)
        and re.search(r"\d|\\|\b[A-J]\b", SENTENCE_END.split(after.lstrip(), maxsplit=1)[0])
        and not STATED.search(after)
    ):
        raise _NoAnswerError("it has several possible answers")
    return IS_THE_ANSWER.sub("", explained.strip(" *_`:"))


def _after_hashes(text: str, is_answer: Callable[[str], bool]) -> list[str]:
    """Return the answer after ``####``, as in GSM8K. A heading is no answer."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [(line.rpartition("####")[2].strip(" #*"), place) for place, line in enumerate(lines, 1) if "####" in line]
    return [each for each, place in found if each and (place == len(lines) or is_answer(each))][-1:]


def _tags(text: str, is_answer: Callable[[str], bool], read_line: Callable[[str], str | None]) -> Iterator[str]:
    for match in TAG.finditer(text):
        content = match[1].strip()
        if not content:
            raise _NoAnswerError("its <answer> is empty")
        if BOX.search(content) or STATED.search(content):
            continue
        if is_answer(content):
            yield content
        elif (answer := read_line(_last_line(content))) is not None:
            yield answer
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
    if NEGATION.search(line) or UNSURE.search(line):
        return None
    line = SO.sub("", IS_THE_ANSWER.sub("", line))
    if is_answer(line):
        return line
    cut = CLAUSE.search(line)
    sentence = line[: cut.start()] if cut and cut.start() > 0 else line
    for match in reversed(list(RESULT.finditer(sentence))):
        answer = sentence[match.end() :].strip(" *_.`")
        is_stated = match[0].lower().strip(" :") in ("is", "are", "was", "")
        if answer and (is_stated or re.search(r"\d|\\", answer)) and is_answer(answer):
            return answer
    spans = [match[0] for match in SPAN.finditer(line)]
    if len(spans) == 1 and not NUMBER.search(SPAN.sub("", line)) and is_answer(spans[0]):
        return spans[0]
    numbers = [match[0].strip() for match in NUMBER.finditer(line)]
    if not spans and len(set(numbers)) == 1 and re.search(r"[A-Za-z]{2}", line):
        return numbers[0]
    return None


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
