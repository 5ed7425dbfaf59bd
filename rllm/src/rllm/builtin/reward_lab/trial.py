"""One reward on many cases: values, verdicts, times, and a second pass in which all cases run at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rllm.builtin.reward_lab.cases import FORMATS, WRONG, Case, Row, exploits, right_cases, spaced_cases
from rllm.evaluation.statistics import Estimate, share
from rllm.planning.scoring import Scorer, WeightedReward
from rllm_core.contracts.reward import Score


@dataclass(frozen=True, kw_only=True)
class Result:
    """A case and its score."""

    case: Case
    score: Score
    seconds: float
    together: Score | None = None
    """The score in the second pass. None without a second pass."""

    @property
    def differs(self) -> bool:
        """True if the two passes give different values."""
        return self.together is not None and self.together.value != self.score.value

    def is_accepted(self, threshold: float) -> bool:
        """True if the reward reports the response as correct, or without a report, if its value is large enough."""
        if self.score.value is None:
            return False
        return self.score.value >= threshold if self.score.correct is None else self.score.correct


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The results of one reward."""

    name: str
    results: Sequence[Result]
    threshold: float
    """Smallest value of an accepted response, for rewards that do not report `correct`."""
    formats: Mapping[str, str]
    """The formats in which the reward accepts an answer. Only cases in these formats count."""

    @property
    def missing(self) -> list[Result]:
        """The responses without a reward."""
        return [each for each in self.results if each.score.value is None]

    @property
    def is_broken(self) -> bool:
        """True if no response has a reward."""
        return len(self.missing) == len(self.results)

    def select_cases(self, *, is_right: bool) -> list[Result]:
        """Return all right cases, or all exploits, in the reward's formats."""
        return [
            each for each in self.results if each.case.is_right == is_right and each.case.format in {"", *self.formats}
        ]

    def mistakes(self, *, is_right: bool) -> list[Result]:
        """Return the right cases that are rejected, or the exploits that are accepted."""
        return [each for each in self.select_cases(is_right=is_right) if each.is_accepted(self.threshold) != is_right]

    def rate(self, *, is_right: bool) -> Estimate:
        """Return the share of false negatives, or of false positives, with an interval by row."""
        cases = Counter(each.case.row.number for each in self.select_cases(is_right=is_right))
        wrong = Counter(each.case.row.number for each in self.mistakes(is_right=is_right))
        return share([wrong[row] / count for row, count in cases.items()], cases.total())


async def try_reward(
    name: str,
    reward: WeightedReward,
    rows: Sequence[Row],
    *,
    formats: Mapping[str, str],
    threshold: float | None,
    twice: bool,
    report: Callable[[str], None],
) -> Trial:
    """Score all cases of the rows one after the other, and again all at once with a reward that is loaded again.

    Args:
        name: the reward's name in the report.
        reward: the reward, with weight 1.
        rows: one or more rows of the data.
        formats: the formats that the user requires. If there is none, all of `FORMATS` are tried, and the formats in
            which the reward accepts no row's answer do not count.
        threshold: smallest value of an accepted response. None: the middle between the lowest and the highest value of
            right and wrong answers.
        twice: run the second pass.
        report: called with the progress, for display.
    """
    scorer = Scorer([reward])

    async def score(cases: Sequence[Case]) -> list[Result]:
        results: list[Result] = []
        for group in _groups(scorer, cases):
            report(f"{name}: {len(results) + len(group)} of {len(cases)} responses")
            start, scores = time.perf_counter(), await scorer.score_all([case.as_rollout() for case in group])
            seconds = (time.perf_counter() - start) / len(group)
            for case, each in zip(group, scores, strict=True):
                results.append(Result(case=case, score=each, seconds=seconds))
        return results

    tried = formats or FORMATS
    results = await score([*right_cases(rows, tried), *(each for each in exploits(rows, tried) if each.name == WRONG)])
    threshold = _middle(results) if threshold is None else threshold
    accepted = {each.case.format for each in results if each.case.is_right and each.is_accepted(threshold)}
    read = formats or {form: FORMATS[form] for form in FORMATS if form in accepted} or FORMATS
    others = (each for each in exploits(rows, read) if each.name != WRONG)
    results += await score([*spaced_cases(rows, read), *others])
    if twice:
        report(f"{name}: all {len(results)} responses at once")
        again = await _score_together(reward, [each.case for each in results])
        results = [replace(each, together=score) for each, score in zip(results, again, strict=True)]
    return Trial(name=name, results=results, threshold=threshold, formats=read)


def _middle(results: Sequence[Result]) -> float:
    values = [each.score.value for each in results if each.score.value is not None]
    return (min(values) + max(values)) / 2 if values and min(values) < max(values) else 0.5


def _groups(scorer: Scorer, cases: Sequence[Case]) -> list[list[Case]]:
    """Return the cases of each call: one case, or all cases of a row if the reward compares rollouts."""
    groups: dict[int, list[Case]] = {}
    for number, case in enumerate(cases):
        groups.setdefault(case.row.number if scorer.has_groups else number, []).append(case)
    return [*groups.values()]


async def _score_together(reward: WeightedReward, cases: Sequence[Case]) -> list[Score]:
    """Return the scores of a reward that is loaded again, and is called with all cases at once in a shuffled order."""
    scorer = Scorer([reward])
    groups = _groups(scorer, random.Random(0).sample(cases, len(cases)))
    scores = await asyncio.gather(*(scorer.score_all([case.as_rollout() for case in group]) for group in groups))
    by_case = {id(case): score for case, score in zip(chain(*groups), chain(*scores), strict=True)}
    return [by_case[id(case)] for case in cases]
