"""The reward `choice`. It reads the letter of the option that the response states as its final answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from rllm.builtin.tasks.answers import Answer, AnswerParams, AnswerReward, NoAnswerError, right_or_wrong
from rllm.builtin.tasks.final_answers import (
    BOLD,
    NEGATION,
    SENTENCE_END,
    UNSURE,
    FinalAnswer,
    find_answer,
    remove_reasoning,
)
from rllm.builtin.tasks.math_text import write_plain
from rllm_core.contracts.reward import Score
from rllm_core.data.messages import Response


class ChoiceParams(AnswerParams):
    """Options of ``choice``."""

    letters: str = Field("ABCDE", pattern="^[A-Z]{2,26}$")
    """Option letters. An integer in the column is an index from 0."""


ONLY = re.compile(r"[\W_]*(?:\\(?:boxed|text|textbf|mathbf)\{[\W_]*)*([A-Za-z])[\W_]*")
"""An answer that is a letter, such as ``B``, ``(b)``, ``**B**`` or ``\\boxed{B}``."""
FIRST = re.compile(r"\(?([A-Za-z])[).:\]]\s.*", re.DOTALL)
"""An answer that starts with its letter, such as ``B) Paris``."""
LAST = re.compile(r".*(?:####|\b(?i:answer|option|choice)(?: is)?\b)[\s:]*\(?([A-Za-z])\)?\.?", re.DOTALL)
"""An answer that ends with its letter, such as ``The answer is B.``."""
STARTS = re.compile(r"[(\[]?([A-Z])(?:[)\]]|[.:,](?=\s))")
"""A line that starts with an option, such as ``B) Paris`` and ``B. Paris``."""
NAMED = re.compile(r"\(([A-Za-z])\)|(?<![\w'\u2019$\\])([A-Z])(?![\w'\u2019])(?!-)")
"""An option in a sentence: any letter in parentheses, or a capital letter next to no other letter."""
BEFORE = re.compile(
    r"(?:^|[^\w\s]|\b(?:is|be|it|so|with|option|choice|answer|choose|pick|select|say|think|est|ist|es|la))\W*$",
    re.IGNORECASE,
)
"""The end of a sentence's text before its option. Otherwise it is part of a name, such as ``Vitamin B``."""


def read_letter(answer: Answer, letters: str) -> str:
    """Return the letter of a right answer. An integer is an index of `letters`, from 0.

    Raises:
        NoAnswerError: the answer is no letter, such as the text ``A dog``.
    """
    if isinstance(answer, str):
        found = next((match[1] for form in (ONLY, FIRST, LAST) if (match := form.fullmatch(answer.strip()))), "")
        if found and found.upper() in letters:
            return found.upper()
    elif not isinstance(answer, bool) and answer == int(answer) and 0 <= answer < len(letters):
        return letters[int(answer)]
    raise NoAnswerError(f"{answer!r:.80} is none of {letters}")


def find_letter(text: str, letters: str) -> FinalAnswer:
    """Return the letter that a response states as its final answer. Two different letters are no answer."""
    found = find_answer(
        text, lambda part: _letter_of(part, letters) is not None, lambda line: _read_line(line, letters)
    )
    if found.text is None:
        return found
    stated = [_letter_of(each, letters) for each in found.all_texts]
    named = {each for each in stated if each is not None}
    if None in stated or len(named) != 1:
        reason = (
            f"it names {' and '.join(sorted(named))}" if len(named) > 1 else f"{found.text!r:.80} is none of {letters}"
        )
        return FinalAnswer(None, reason=reason)
    if found.place == "last line" and len(_options_at_starts(text, letters)) > 1:
        return FinalAnswer(None, reason="it lists the options")
    return FinalAnswer(named.pop(), found.place)


class Choice(AnswerReward):
    """Reward of 1 if the option that the response states as its final answer is the right one."""

    def __init__(self, params: ChoiceParams) -> None:
        super().__init__(params.column)
        self._letters = params.letters

    def score(self, response: Response, answers: Sequence[Answer]) -> Score:
        right = [read_letter(each, self._letters) for each in answers]
        found = find_letter(response.content, self._letters)
        return right_or_wrong(found.text in right, found.text, found.reason)


def _options_at_starts(text: str, letters: str) -> set[str]:
    lines = [line.strip(" *-_#") for line in remove_reasoning(text).splitlines()]
    return {match[1] for line in lines if (match := STARTS.match(line)) and match[1] in letters}


def _letter_of(text: str, letters: str) -> str | None:
    """Return the option that a stated answer is, or None."""
    plain = re.sub(r"^(?:option|choice|letter|answer)\b[\s:]*", "", write_plain(text), flags=re.IGNORECASE)
    plain = re.split(r",\s+(?:and\s+)?not\s", plain)[0]
    if (match := ONLY.fullmatch(plain)) and match[1].upper() in letters:
        return match[1].upper()
    match = STARTS.match(plain) or re.match(r"\(([a-z])\)", plain)
    if match and match[1].upper() in letters:
        rest = plain[match.end() :]
        # "A, B or C" names several options. "C. A good guess" names one.
        others = {each for each in _options_in(rest, letters) if each != match[1].upper()}
        if "," in match[0] or re.match(r"\s*(?:or|and|/|,|\()", rest) or re.search(r"(?<!\w)[A-Z][).:]\s", rest):
            return None if others else match[1].upper()
        return match[1].upper()
    return None


def _options_in(sentence: str, letters: str) -> list[str]:
    """Return the options in a sentence. The article A and the pronoun I are none, unless it is in parentheses."""
    found = []
    for match in NAMED.finditer(sentence):
        letter = (match[1] or match[2]).upper()
        is_word = match[2] and (
            letter == "I" or (letter == "A" and re.match(r"\s+(?!(?:or|and|nor|is)\b)[a-z]", sentence[match.end() :]))
        )
        if letter in letters and not is_word:
            found.append(letter)
    return found


def _read_line(line: str, letters: str) -> str | None:
    """Return the option in a last line: at its start, or the only option in its last sentence."""
    line = BOLD.sub("", line).strip(" *_#>-").strip()
    if letter := _letter_of(line, letters):
        return letter
    if STARTS.match(line) and _options_in(line, letters)[1:]:
        return None
    ends = [match.end() for match in SENTENCE_END.finditer(line) if line[match.end() :].strip(" *_\"'")]
    for sentence in (line[ends[-1] :] if ends else line, line):
        if NEGATION.search(sentence) or UNSURE.search(sentence):
            return None
        named = set(_options_in(sentence, letters))
        if named:
            places = [match.start() for match in NAMED.finditer(sentence) if {(match[1] or match[2]).upper()} == named]
            return named.pop() if any(BEFORE.search(sentence[:place]) for place in places) else None
    return None
