"""The reward `judge`: its options, and the score in a judge's response."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from rllm.builtin.tasks.bounded_regex import SlowPatternError, last_group
from rllm.builtin.tasks.patterns import RegexParams
from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError

PLACES = re.compile(r"\{(question|answer|response)\}")
PROMPT = """Question:
{question}

Right answer:
{answer}

Response to grade:
{response}

Is the response right? Explain in one sentence, then end with yes or no."""


OF_CLIENT = {"model", "messages", "stream"}
"""Fields of a request that other options set, or that cannot be set."""


def _is_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not an address: write, for example, http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError("do not put a key into the address: set api_key_env to an environment variable")
    return url.rstrip("/")


def _has_the_response(prompt: str) -> str:
    if "response" not in PLACES.findall(prompt):
        raise ValueError("it has no placeholder {response}")
    return prompt


def _leaves_out(body: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(OF_CLIENT & set(body)):
        raise ValueError(f"{', '.join(taken)} cannot be set here: use the other options of the judge")
    return body


class JudgeParams(Params):
    """Options of ``judge``."""

    url: Annotated[str, AfterValidator(_is_address)]
    """Base URL of an OpenAI-compatible API, up to /v1. Requests go to URL/chat/completions."""
    model: str = Field(min_length=1)
    """Name of the judge model at this API."""
    prompt: Annotated[str, AfterValidator(_has_the_response)] = PROMPT
    """Prompt for the judge, with {question}, {answer} and {response}. Other braces stay unchanged."""
    system_prompt: str | None = None
    """System message for the judge."""
    column: str = Field("answer", min_length=1)
    """Column for {answer}. Use dots for nested keys."""
    read: Literal["yes_no", "number", "regex", "json"] = "yes_no"
    """Part of the judge's response that is the score: yes (1) or no (0) at its end, after 'verdict:' or at its start, a
    number, the last match of `pattern`, or `field` of the last JSON object. The number is after 'score', 'grade' or
    'rating', before /`best` or 'out of' `best`, or the whole last line. A response with several such numbers has no
    score."""
    pattern: str | None = None
    r"""With read=regex: a group that matches a number, such as 'score: (\d+)'."""
    field: str | None = Field(None, min_length=1)
    """With read=json: key of the number, true or false. Use dots for nested keys."""
    worst: float = 0.0
    """Number that means reward 0. A number outside worst and best is no score."""
    best: float = 1.0
    """Number that means reward 1."""
    solved_from: float | None = Field(None, gt=0, le=1)
    """Minimum reward of a solved task. null: this reward does not report solved tasks."""
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_]\w*$")
    """Environment variable with the API key. null: no key is sent."""
    body: Annotated[dict[str, Any], AfterValidator(_leaves_out)] = Field(
        default_factory=lambda: {"temperature": 0.0, "max_tokens": 512}
    )
    """Additional fields of each request."""
    timeout: float = Field(60.0, gt=0, le=600)
    """Seconds that one request may take."""
    retries: int = Field(4, ge=0, le=20)
    """Number of retries after a temporary failure."""
    backoff: float = Field(1.0, ge=0, le=60)
    """Seconds before the second try. The wait doubles before each later try."""
    concurrency: int = Field(16, gt=0, le=1024)
    """Maximum number of responses judged at the same time."""

    @property
    def asks_for_answer(self) -> bool:
        return "answer" in PLACES.findall(self.prompt)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name, reader in (("pattern", "regex"), ("field", "json")):
            if (self.read == reader) != (getattr(self, name) is not None):
                raise ValueError(f"`{name}` goes with read={reader}, and read is {self.read}")
        if self.pattern is not None:
            RegexParams(pattern=self.pattern)
        if self.worst == self.best:
            raise ValueError("worst and best are the same number: set them to the two ends of the scale")
        return self


def check_judge(params: JudgeParams) -> None:
    """Check that the API key's environment variable is set.

    Raises:
        ConfigError: it is not set.
    """
    if params.api_key_env is not None and not os.environ.get(params.api_key_env, "").strip():
        raise ConfigError(
            "missing-api-key",
            f"Reward 'judge' reads its key from the environment variable {params.api_key_env}, which is not set.",
            f"export {params.api_key_env}=…, or remove api_key_env if the judge needs no key.",
        )


NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(
    r"\(?(?:\b(?:on|in)\s+)?(?:\b(?:a|the)\s+)?(?:\b(?:scale|range)\s+)?(?:\b(?:is\s+)?(?:of|from|between)\s+)?"
    rf"(?<![\d.])({NUMBER})\s*(to|and|-|\u2013|/|out of)\s*({NUMBER})(?![\d.]*\d)\)?",
    re.IGNORECASE,
)
"""A scale such as ``1 to 10``, or a grade with its best, such as ``7/10``."""
LEGEND = re.compile(
    rf"({NUMBER})\s*(?:=|means|is|being)\s*(?:the\s+)?(?:very\s+)?"
    r"(?:worst|best|lowest|highest|minimum|maximum|perfect|poor|bad|good|excellent|terrible)\b"
    rf"|\b(?:worst|best|lowest|highest|minimum|maximum|max)\b[^\w\n]{{0,3}}(?:is|score|=|:)?[^\w\n]{{0,3}}({NUMBER})",
    re.IGNORECASE,
)
"""The meaning of a number on the scale, such as ``10 = best``."""
LABEL = re.compile(
    r"(?:\b(final|overall|total|revised)\s+)?\b(?:score|grade|rating|mark|verdict|points)\b[^\w\n-]{0,9}(?:(?:is|of)\b)?"
    rf"\s*(?:an?\s+)?[^\w\n-]{{0,9}}\n?[^\w\n-]{{0,9}}({NUMBER})"
    rf"|\b(?:give|giving|assign|rate|award)\b(?:\s+[a-z]+){{0,4}}\s+({NUMBER})",
    re.IGNORECASE,
)
"""A grade after its name, such as ``Score: 7`` and ``I give it a 7``."""
MARKUP = re.compile(r"[*`$\"#]|\\boxed|</?(?:score|grade|rating|answer|verdict)>(?=\s*$)|</", re.IGNORECASE)
ONLY = re.compile(rf"[^\w-]*({NUMBER})[^\w%]*(?:(?:where|scale|on|from|a|of|in)[^\w%]*)*")
"""A line that is only a number, next to the rest of a scale."""
SENTENCE = re.compile(r"[.!?;](?=\s|$)|\n")
NEGATION = re.compile(
    r"\b(?:not|never|cannot|neither|or|maybe|perhaps|if|without|needs?|(?<!I )would)\b|n['\u2019]t\b", re.IGNORECASE
)
BEFORE = re.compile(
    r"\W*(?:(?:so|thus|therefore|hence|in total|I (?:would )?(?:give|assign)(?: it)?)\W+)?(?:(?:the|my|an?)\s+)?",
    re.IGNORECASE,
)
"""The start of a sentence with a grade. After other text, such as ``a perfect score``, the number is no grade."""

VERDICT = re.compile(
    r"(?:^|[.!\n])\W*(?:(?:so|thus|therefore|the|my|final|overall)\s+)*(?:verdict|answer|conclusion|decision|judge?ment|result)\b"
    r"\W{0,3}(?:is\b)?\W{0,5}(yes|no)\b(?=\s*(?:[.!(\n]|\Z))",
    re.IGNORECASE,
)
LAST = re.compile(r"(?:^|[.!\n])\W*(yes|no)\W*\Z", re.IGNORECASE)
FIRST = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)

LONGEST = 20_000
"""Number of characters at the end of a response that are searched, because judges write the score last."""

SECONDS = 5.0
"""Time limit of one match, in seconds."""


class UnreadableError(Exception):
    """A judge's response contains no score. The message gives the reason."""


def read_score(said: str, params: JudgeParams) -> tuple[float, str]:
    """Return the reward, from 0 to 1, and the part of `said` that contains it.

    Raises:
        UnreadableError: there is no score, or it is outside of `worst` and `best`.
    """
    said = said[-LONGEST:]
    if params.read == "yes_no":
        word = _verdict(said)
        return float(word.lower() == "yes"), word
    if params.read == "number":
        text = _grade(said, params)
    elif params.read == "regex":
        text = _matched(said, params.pattern or "")
    else:
        text = _field(said, params.field or "")
    return _scaled(text, params), text


def _last(found: list[str], what: str) -> str:
    if not found:
        raise UnreadableError(f"it has {what}")
    return found[-1]


def _verdict(said: str) -> str:
    """Return yes or no: the last sentence, or after ``verdict:``. Elsewhere they are parts of a sentence.

    Raises:
        UnreadableError: it is none of these, or a question or the other one comes before it.
    """
    said = re.sub(r"[*`$\"#]|\\boxed|</?\w+>", " ", said).strip()
    found = VERDICT.findall(said)
    if not found and "?" not in said:
        found = LAST.findall(said) + FIRST.findall(said)[:1] * bool(LAST.search(said))
    if len({each.lower() for each in found}) > 1:
        raise UnreadableError("it has both yes and no")
    return _last(found, "neither yes nor no in a stated form")


def _grade(said: str, params: JudgeParams) -> str:
    """Return the number that is the grade.

    It is after its name (``Score: 7``), before its best (``7/10``), or the whole last line. The text may repeat it.
    With a different number in the grade's sentence it has none.

    Raises:
        UnreadableError: there is no grade in a stated form, or more than one.
    """

    def drop_scale(match: re.Match[str]) -> str:
        first, sign, second = match.groups()
        if sign in ("/", "out of"):
            # A grade with a different best cannot be read.
            return first if abs(float(second)) == abs(params.best) else f" {first} {second} "
        is_scale = float(first) in (params.worst, 0, 1) and abs(float(second)) == abs(params.best)
        return "" if is_scale else f" {first} {second} "

    pairs = [
        pair[1] for pair in RANGE.finditer(said) if pair[2] in ("/", "out of") and float(pair[3]) == abs(params.best)
    ]
    said = LEGEND.sub("", RANGE.sub(drop_scale, MARKUP.sub(" ", said)))
    labels = list(LABEL.finditer(said))
    final = [label for label in labels if label[1]]
    for label in final or labels:
        start = max((each.end() for each in SENTENCE.finditer(said, 0, label.start())), default=0)
        stop = SENTENCE.search(said, label.end())
        sentence = said[start : stop.start() if stop else len(said)]
        numbers = {float(each) for each in re.findall(NUMBER, sentence)}
        has_other_text = not label[3] and not BEFORE.fullmatch(said[start : label.start()])
        if has_other_text or NEGATION.search(sentence) or len(numbers) > 1 or re.match(r"\s*%", said[label.end() :]):
            raise UnreadableError(
                f"it has several numbers that may be the grade, or denies it: {sentence.strip()!r:.80}"
            )
    found = [label[2] or label[3] for label in final or labels]
    if not final:
        found += pairs
    if not found:
        only = ONLY.fullmatch(said.strip().rpartition("\n")[2])
        found = [only[1]] if only else []
        if not only and len({float(each) for each in re.findall(NUMBER, said)}) > 1:
            raise UnreadableError("it has several numbers that may be the grade")
    if len({float(each) for each in found}) > 1:
        raise UnreadableError(f"it has several numbers that may be the grade, {', '.join(found)}")
    return _last(found, "no number in a stated form")


def _matched(said: str, pattern: str) -> str:
    try:
        found = last_group(pattern, said, SECONDS)
    except SlowPatternError as error:
        raise UnreadableError(str(error)) from None
    return _last([] if found is None else [found], f"nothing that matches {pattern}")


def _field(said: str, field: str) -> str:
    value: Any = _last_object(said)
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise UnreadableError(f"its JSON has no {field!r}")
        value = value[part]
    return json.dumps(int(value) if isinstance(value, bool) else value).strip('"')


def _last_object(said: str) -> Mapping[str, Any]:
    """Return the last JSON object that is not inside of a different one."""
    decoder, found, start = json.JSONDecoder(), None, said.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(said, start)
        except (ValueError, RecursionError):
            end = start + 1
        start = said.find("{", end)
    if not isinstance(found, Mapping):
        raise UnreadableError("it has no JSON object")
    return found


def _scaled(text: str, params: JudgeParams) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UnreadableError(f"{text!r:.80} is no number") from None
    value = (number - params.worst) / (params.best - params.worst)
    if not 0 <= value <= 1:
        raise UnreadableError(f"{text} is not between {params.worst:g} and {params.best:g}")
    return value
