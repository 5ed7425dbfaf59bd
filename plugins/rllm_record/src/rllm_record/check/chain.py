"""Findings of `rllm record check`, and the checks that need no torch: files, ids, rewards, advantages and norms."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm.runs.metrics_file import METRICS
from rllm_record.steps import digests
from rllm_record.steps.files import KINDS, StepFiles
from rllm_record.steps.parquet import FIRST_WITH_DIGESTS, VERSION_KEY, RecordError, read_marks
from rllm_record.steps.rows import RecordedOutcome


@dataclass(frozen=True)
class Mismatch:
    """A difference between a record and the updates of its run."""

    code: str
    """Code of the finding, in the style of an `RllmError` code."""
    text: str
    """Description with the step, the optimizer step and the token."""


@dataclass
class Report:
    """The findings for a whole run."""

    first_step: int = 0
    """First recorded step. It is not 0 if recording started when the run was resumed."""
    steps: int = 0
    """Number of training steps that made an update."""
    optimizer_steps: int = 0
    """Number of optimizer steps whose loss was computed again."""
    tokens: int = 0
    """Number of trained tokens, counted once per epoch."""
    largest_loss_error: float = 0.0
    largest_coefficient_error: float = 0.0
    """Largest error of a coefficient, relative to the largest coefficient of its optimizer step."""
    untraced: list[int] = field(default_factory=list)
    """Steps for which the backend recorded no trace."""
    unlogged: list[int] = field(default_factory=list)
    """Steps with an update whose loss is not in the run's metrics, so that it could not be compared."""
    undigested: list[int] = field(default_factory=list)
    """Steps without digests of their files, because an older rllm-record wrote them."""
    unexplained: int = 0
    """Number of optimizer steps with a loss that has no value per token."""
    problems: list[Mismatch] = field(default_factory=list)


def changed_files(files: StepFiles, step: int, report: Report) -> Iterator[Mismatch]:
    """Yield the files of a step that have changed since they were written."""
    outcomes = files.place(digests.LAST, step)
    try:
        marks = read_marks(outcomes)
        contents = {kind: place.read_bytes() for kind in KINDS if (place := files.place(kind, step)).exists()}
    except (OSError, RecordError) as error:
        yield Mismatch("file-unreadable", f"step {step}: {getattr(error, 'message', error)}")
        return
    if digests.KEY not in marks and int(marks[VERSION_KEY]) < FIRST_WITH_DIGESTS:
        report.undigested.append(step)
        return
    expected = _digests_in(marks.get(digests.KEY, b""))
    for kind in KINDS:
        name = f"step {step}: {kind}/{files.place(kind, step).name}"
        if kind not in contents and kind in expected:
            yield Mismatch("missing-file", f"{name} is missing")
        elif kind in contents and kind not in expected:
            yield Mismatch("foreign-file", f"{name} is not one of the files that the run wrote for the step")
        elif kind in contents:
            data, digest = contents[kind], expected[kind]
            same = digests.is_sealed(data, digest) if kind == digests.LAST else digests.digest_of(data) == digest
            if not same:
                yield Mismatch("changed-file", f"{name} has changed since it was written: its digest differs")


def _digests_in(mark: bytes) -> dict[str, str]:
    """Return kind -> digest. Empty if the metadata value is damaged."""
    try:
        found = json.loads(mark)
        return {str(kind): str(digest) for kind, digest in found.items()}
    except (ValueError, AttributeError):
        return {}


LOGGED = {"grad_norm": "actor/grad_norm", "learning_rate": "actor/lr"}
"""Column of `UPDATES` -> the metric that is its mean."""
NORM_TOLERANCE = 1e-6
ADDED = (1e-6, 0.0)
"""Numbers that clipping functions add to a norm before they divide by it: 1e-6 in torch, 0 elsewhere."""


def check_logged(step: int, updates: Sequence[Mapping[str, Any]], logged: Mapping[str, float]) -> Iterator[Mismatch]:
    """Check that the logged metrics are the means over the optimizer steps."""
    for column, metric in LOGGED.items():
        values = [update[column] for update in updates]
        if metric in logged and values and None not in values:
            mean = float(np.mean(values))
            if not abs(mean - logged[metric]) <= NORM_TOLERANCE * abs(mean):
                yield Mismatch(
                    "metric-mismatch",
                    f"step {step}: {metric} in {METRICS} is {logged[metric]:.9g}, but {mean:.9g} follows from updates",
                )


def check_clipping(updates: Mapping[str, Mapping[str, Any]]) -> Iterator[Mismatch]:
    """Check that all clipped gradients of a run were scaled down to the same norm.

    Args:
        updates: name for the message -> row of `UPDATES`.
    """
    known = {name: row for name, row in updates.items() if row["grad_norm"] and row["clip_factor"] is not None}
    if not known:
        return
    norms = np.array([row["grad_norm"] for row in known.values()])
    factors = np.array([row["clip_factor"] for row in known.values()])
    clipped = factors != 1.0
    wrong = ~((factors > 0) & (factors <= 1))
    if clipped.any():
        # The right addition is the one with the fewest differing gradients.
        found = [_differing(factors, norms + added, clipped) for added in ADDED]
        wrong |= min(found, key=np.sum)
    for index in np.flatnonzero(wrong):
        name = list(known)[index]
        yield Mismatch(
            "clipping-mismatch",
            f"{name}: clip_factor {factors[index]:.9g} does not follow from grad_norm {norms[index]:.9g}",
        )


def _differing(factors: Any, norms: Any, clipped: Any) -> Any:
    """Return (n,) bools, True for gradients whose clipping limit differs from the median."""
    limit = float(np.median((factors * norms)[clipped]))
    expected = np.minimum(1.0, limit / norms)
    return np.abs(factors - expected) > NORM_TOLERANCE * expected


TOLERANCE = 1e-5
"""Tolerance relative to the largest value of a group, because advantages are float32."""
COMPARES_WITH_MEAN = frozenset({"grpo", "reinforce_plus_plus_baseline"})
COMPARES_WITH_OTHERS = frozenset({"rloo"})
"""Estimators of rllm-core, by their kind of baseline. Baselines of other estimators are not checked."""

Row = Mapping[str, Any]


class Played:
    """The recorded trajectories of each step. A step is read once and kept until it is dropped."""

    def __init__(self, files: StepFiles) -> None:
        self._files = files
        self._steps: dict[int, dict[str, tuple[Row, Row]]] = {}

    def __getitem__(self, step: int) -> Mapping[str, tuple[Row, Row]]:
        """Return trajectory uid -> its episode and the trajectory. Empty if the step is not recorded.

        Raises:
            RecordError: the file cannot be read.
        """
        if step not in self._steps:
            recorded = self._files.place("episodes", step).exists()
            episodes = self._files.episode_table(step).to_pylist() if recorded else []
            pairs = [(episode, each) for episode in episodes for each in episode["trajectories"]]
            self._steps[step] = {each["uid"]: (episode, each) for episode, each in pairs}
        return self._steps[step]

    def drop_except(self, steps: Set[int]) -> None:
        """Drop the trajectories of all other steps, so that memory does not grow with the length of the run."""
        self._steps = {step: found for step, found in self._steps.items() if step in steps}


def check_ids(step: int, outcomes: Sequence[RecordedOutcome], played: Played) -> Iterator[Mismatch]:
    """Check that outcomes and episodes contain the same trajectories, and that trained trajectories used a reward."""
    here = dict(played[step])
    for recorded in outcomes:
        outcome = recorded.outcome
        where = f"step {step}: {outcome.trajectory}"
        if outcome.step != step:
            yield Mismatch("id-mismatch", f"{where} has an outcome of step {outcome.step}")
        found = played[recorded.played_step].get(outcome.trajectory)
        if recorded.played_step == step:
            here.pop(outcome.trajectory, None)
        if found is None:
            if recorded.episode and (recorded.played_step == step or played[recorded.played_step]):
                yield Mismatch(
                    "missing-episode", f"{where} has an outcome, but no episode of step {recorded.played_step} has it"
                )
            continue
        episode, trajectory = found
        expected = (recorded.played_step, recorded.round, recorded.episode, recorded.name)
        if expected != (episode["step"], episode["round"], episode["uid"], trajectory["name"]):
            yield Mismatch(
                "id-mismatch", f"{where}: step, round, episode or name of its outcome differ from those in episodes"
            )
        used = trajectory["reward"] if outcome.outcome == "trained" else None
        if recorded.played_step == step and not _same(trajectory["reward_used"], used):
            yield Mismatch(
                "reward-mismatch",
                f"{where}: reward_used is {trajectory['reward_used']}, but {used} follows from its outcome",
            )
    for uid in here:
        yield Mismatch("missing-outcome", f"step {step}: {uid} was generated and has no outcome")
    for uid, (episode, _) in played[step].items():
        if episode["uid"] != f"{step}.{episode['round']}:{episode['id']}" or uid.rpartition("/")[0] != episode["uid"]:
            yield Mismatch(
                "id-mismatch", f"step {step}: the ids of {uid} and of its episode {episode['uid']} do not agree"
            )


def check_traces(
    step: int, rows: Sequence[Row], outcomes: Sequence[RecordedOutcome], played: Played
) -> Iterator[Mismatch]:
    """Check that traces contain only sampled tokens, with the advantages of the outcomes."""
    advantages: dict[str, list[list[float]]] = defaultdict(list)
    for row in rows:
        if row["advantage"] is not None:
            advantages[row["trajectory"]].append(row["advantage"])
        found = None if row["played_step"] is None else played[row["played_step"]].get(row["trajectory"])
        if found is None or found[1]["ids"] is None:
            continue
        sampled = _sampled(found[1]["steps"], row["segment"])
        if any(a >= b for a, b in zip(row["positions"], row["positions"][1:], strict=False)) or not (
            sampled.issuperset(row["positions"])
        ):
            yield Mismatch(
                "position-mismatch",
                f"step {step}, {row['trajectory']}, segment {row['segment']}: positions are not its sampled tokens",
            )
    for recorded in outcomes:
        traced = advantages.get(recorded.outcome.trajectory)
        if traced is None or recorded.estimator is None:
            continue
        values = np.concatenate([np.array(each, np.float32) for each in traced])
        uniform = float(values[0]) if (values == values[0]).all() else None
        if not _same(recorded.advantage, uniform):
            yield (
                Mismatch(
                    "advantage-mismatch",
                    f"step {step}: the advantage of {recorded.outcome.trajectory} is {recorded.advantage} in its "
                    f"outcome, but {uniform} in its trace",
                )
            )


def check_estimates(step: int, outcomes: Sequence[RecordedOutcome], played: Played) -> Iterator[Mismatch]:
    """Check that the baselines and advantages of rllm-core's estimators follow from the rewards of each group."""
    groups: dict[frozenset[str], list[RecordedOutcome]] = defaultdict(list)
    for recorded in outcomes:
        if recorded.outcome.outcome == "trained" and recorded.outcome.group is not None:
            groups[frozenset((recorded.outcome.trajectory, *recorded.outcome.peers))].append(recorded)
    for uids, members in groups.items():
        found = [played[each.played_step].get(each.outcome.trajectory) for each in members]
        estimators = {each.estimator for each in members}
        if len(uids) != len(members) or len(estimators) != 1 or None in found:
            continue
        (estimator,) = estimators
        rewards = [None if pair is None else pair[1]["reward_used"] for pair in found]
        steps = [0 if pair is None else len(pair[1]["steps"]) for pair in found]
        values = [[each.baseline for each in members], [each.advantage for each in members]]
        if None in rewards or any(None in each for each in values) or estimator is None:
            continue
        problem = _problem(estimator, *(np.array(each, np.float64) for each in (rewards, *values, steps)))
        if problem:
            yield Mismatch(
                "estimate-mismatch",
                f"step {step}: in group {members[0].outcome.group}, {problem} (estimator {estimator})",
            )


def _problem(
    estimator: str,
    rewards: NDArray[np.float64],
    baselines: NDArray[np.float64],
    advantages: NDArray[np.float64],
    steps: NDArray[np.float64],
) -> str | None:
    """Describe why the values of a group do not follow from each other. None if they do, or are not checked."""
    size, n = float(np.abs(rewards).max()), len(rewards)
    if estimator in COMPARES_WITH_MEAN:
        expected = np.full(n, rewards.mean())
    elif estimator in COMPARES_WITH_OTHERS:
        expected = (rewards.sum() - rewards) / max(n - 1, 1)
    else:
        return None
    if n == 1:
        # The baseline of a group with one member is 0 or its own reward.
        return None if baselines[0] in (0.0, rewards[0]) else "the baseline does not follow from the reward"
    if not np.allclose(baselines, expected, rtol=0, atol=TOLERANCE * size):
        return "the baselines do not follow from the rewards"
    surplus = rewards - baselines
    if 0 < np.abs(surplus).max() <= 1e-9 * size:
        # The rounding errors of the baselines are too large, relative to the advantages.
        return None
    # `normalize_by_steps` divides the advantages by the number of steps.
    if not any(_is_multiple(surplus, each, estimator) for each in (advantages, advantages * steps)):
        return "the advantages do not follow from the rewards and baselines"
    return None


def _is_multiple(surplus: NDArray[np.float64], advantages: NDArray[np.float64], estimator: str) -> bool:
    """True if each advantage is its `surplus` times the same positive factor."""
    if estimator == "reinforce_plus_plus_baseline":
        # Its dialect `verl` adds the same number to all advantages of a role.
        surplus, advantages = surplus - surplus[0], advantages - advantages[0]
    largest = int(np.abs(surplus).argmax())
    factor = advantages[largest] / surplus[largest] if surplus[largest] else 0.0
    size = float(np.abs(advantages).max())
    if surplus.any() and not factor > 0:
        return False
    return bool(np.allclose(advantages, factor * surplus, rtol=0, atol=TOLERANCE * size))


def _sampled(steps: Sequence[Row], segment: int) -> set[int]:
    """Return the positions of the sampled tokens in a segment of a trajectory."""
    starts = sorted({step["segment_start"] for step in steps})
    start = starts[segment] if segment < len(starts) else None
    spans = [(step["response_start"], step["end"]) for step in steps if step["segment_start"] == start]
    return {place - (start or 0) for span in spans for place in range(*span)}


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))
