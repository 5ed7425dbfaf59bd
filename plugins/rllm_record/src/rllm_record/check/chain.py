"""Findings of `rllm record check`, and the checks that need no torch: files, ids, rewards, advantages and metrics."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rllm_record.run_files import METRICS
from rllm_record.steps.files import DIGESTS_KEY, KINDS, LAST_KIND, StepFiles, digest_of, has_own_digest
from rllm_record.steps.parquet import RecordError, read_marks
from rllm_record.steps.rows import RecordedOutcome


@dataclass(frozen=True)
class Mismatch:
    """A difference between a record and the updates of its run."""

    code: str
    """Code of the finding, in the style of an `RllmError` code."""
    text: str
    """Description with the step, the optimizer step and the token."""


@dataclass
class CheckReport:
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
    compared_logprobs: int = 0
    """Number of tokens that the first optimizer step of a step trained with the weights that sampled them."""
    largest_logprob_difference: float = 0.0
    """Largest difference of the trainer's and the sampler's log-probs of these tokens, in nats."""
    untraced: list[int] = field(default_factory=list)
    """Steps for which the backend recorded no trace."""
    unlogged: list[int] = field(default_factory=list)
    """Steps with an update whose loss is not in the run's metrics, so that it could not be compared."""
    unexplained: int = 0
    """Number of optimizer steps with a loss that has no value per token."""
    problems: list[Mismatch] = field(default_factory=list)


def changed_files(files: StepFiles, step: int) -> Iterator[Mismatch]:
    """Yield the files of a step that have changed since they were written."""
    outcomes = files.place(LAST_KIND, step)
    try:
        marks = read_marks(outcomes)
        contents = {kind: place.read_bytes() for kind in KINDS if (place := files.place(kind, step)).exists()}
    except (OSError, RecordError) as error:
        yield Mismatch("file-unreadable", f"step {step}: {getattr(error, 'message', error)}")
        return
    expected = _digests_in(marks.get(DIGESTS_KEY, b""))
    for kind in KINDS:
        name = f"step {step}: {kind}/{files.place(kind, step).name}"
        if kind not in contents and kind in expected:
            yield Mismatch("missing-file", f"{name} is missing")
        elif kind in contents and kind not in expected:
            yield Mismatch("foreign-file", f"{name} is not one of the files that the run wrote for the step")
        elif kind in contents:
            data, digest = contents[kind], expected[kind]
            same = has_own_digest(data, digest) if kind == LAST_KIND else digest_of(data) == digest
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


def check_metrics(step: int, updates: Sequence[Mapping[str, Any]], logged: Mapping[str, float]) -> Iterator[Mismatch]:
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


Row = Mapping[str, Any]


class RecordedSteps:
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


def check_ids(step: int, outcomes: Sequence[RecordedOutcome], steps: RecordedSteps) -> Iterator[Mismatch]:
    """Check that outcomes and episodes contain the same trajectories, and that trained trajectories used a reward."""
    here = dict(steps[step])
    for recorded in outcomes:
        outcome = recorded.outcome
        where = f"step {step}: {outcome.trajectory}"
        if outcome.step != step:
            yield Mismatch("id-mismatch", f"{where} has an outcome of step {outcome.step}")
        found = steps[recorded.rollout_step].get(outcome.trajectory)
        if recorded.rollout_step == step:
            here.pop(outcome.trajectory, None)
        if found is None:
            if recorded.episode and (recorded.rollout_step == step or steps[recorded.rollout_step]):
                yield Mismatch(
                    "missing-episode", f"{where} has an outcome, but no episode of step {recorded.rollout_step} has it"
                )
            continue
        episode, trajectory = found
        expected = (recorded.rollout_step, recorded.batch, recorded.episode, recorded.name)
        if expected != (episode["step"], episode["batch"], episode["uid"], trajectory["name"]):
            yield Mismatch(
                "id-mismatch", f"{where}: step, batch, episode or name of its outcome differ from those in episodes"
            )
        used = trajectory["reward"] if outcome.outcome == "trained" else None
        if recorded.rollout_step == step and not _same(trajectory["reward_used"], used):
            yield Mismatch(
                "reward-mismatch",
                f"{where}: reward_used is {trajectory['reward_used']}, but {used} follows from its outcome",
            )
    for uid in here:
        yield Mismatch("missing-outcome", f"step {step}: {uid} was generated and has no outcome")
    for uid, (episode, _) in steps[step].items():
        if episode["uid"] != f"{step}.{episode['batch']}:{episode['id']}" or uid.rpartition("/")[0] != episode["uid"]:
            yield Mismatch(
                "id-mismatch", f"step {step}: the ids of {uid} and of its episode {episode['uid']} do not agree"
            )


def check_traces(
    step: int, rows: Sequence[Row], outcomes: Sequence[RecordedOutcome], steps: RecordedSteps
) -> Iterator[Mismatch]:
    """Check that traces contain only sampled tokens, with the advantages of the outcomes."""
    advantages: dict[str, list[list[float]]] = defaultdict(list)
    for row in rows:
        if row["advantage"] is not None:
            advantages[row["trajectory"]].append(row["advantage"])
        found = None if row["rollout_step"] is None else steps[row["rollout_step"]].get(row["trajectory"])
        if found is None or found[1]["ids"] is None:
            continue
        sampled = set(_versions_by_position(found[1]["steps"], row["segment"]))
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


def compare_logprobs(rows: Sequence[Row], version: int, steps: RecordedSteps, report: CheckReport) -> None:
    """Compare the log-probs of the trainer and of the sampler for tokens with equal weights, and note the difference.

    Args:
        rows: the traces of a step.
        version: weight version at the start of the step's update.
        steps: the recorded trajectories.
        report: the report that gets the number of tokens and the largest difference.
    """
    for row in rows:
        found = None if row["rollout_step"] is None else steps[row["rollout_step"]].get(row["trajectory"])
        if row["optimizer_step"] != 0 or found is None or None in (row["logprob"], row["rollout_logprob"]):
            continue
        versions = _versions_by_position(found[1]["steps"], row["segment"])
        same = np.array([versions.get(position) == version for position in row["positions"]], np.bool_)
        differences = np.abs(np.subtract(row["logprob"], row["rollout_logprob"], dtype=np.float32))[same]
        known = differences[~np.isnan(differences)]
        report.compared_logprobs += len(known)
        report.largest_logprob_difference = max(report.largest_logprob_difference, float(known.max(initial=0)))


def _versions_by_position(steps: Sequence[Row], segment: int) -> dict[int, int]:
    """Return position -> weight version for the sampled tokens in a segment of a trajectory."""
    starts = sorted({step["segment_start"] for step in steps})
    if segment >= len(starts):
        return {}
    versions: dict[int, int] = {}
    for step in steps:
        if step["segment_start"] == starts[segment]:
            places = range(step["response_start"] - starts[segment], step["end"] - starts[segment])
            spans = step["version_spans"] or [{"version": step["weight_version"], "tokens": len(places)}]
            sampled_by = [span["version"] for span in spans for _ in range(span["tokens"])]
            versions |= zip(places, sampled_by, strict=True)
    return versions


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))
