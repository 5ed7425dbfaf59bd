"""Read a run: find out which framework wrote it, and read the run directories of rllm."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rllm.builtin.doctor.run_data import Column, Floats, Rollouts, RunData
from rllm_core.errors import ConfigError
from rllm_record.run_files import CONFIG, LENGTH, PLUGINS, no_run_error, one_run, read_metrics, short_path
from rllm_record.steps.files import step_files
from rllm_record.steps.parquet import RecordError, read_columns

MOST_STEPS = 200
"""Maximum number of steps whose rollouts are read. A longer run is read at evenly spaced steps."""
DISAGREEMENT = "reward_disagreement"
"""Metric of a rollout that the program adds if several rewards score it."""
PREFIXES = {
    Column.SOLVED: "batch/solved",
    Column.LOSS: "actor/loss",
    Column.ENTROPY: "actor/entropy",
    Column.KL_REFERENCE: "actor/kl_ref",
    Column.KL_STEP: "actor/kl_old_new",
    Column.CLIPPED: "actor/clip_fraction",
    Column.GRADIENT: "actor/grad_norm",
    Column.LEARNING_RATE: "actor/lr",
    Column.LENGTH: "response_length/mean",
    Column.TRUNCATED: "response_length/truncated",
    Column.MISMATCH: "actor/rollout_logprob_difference",
    Column.STALENESS: "staleness/mean",
    Column.EFFECTIVE_SAMPLES: "rollout_corr/eff_sample_size",
    Column.EXPLAINED_VARIANCE: "critic/explained_variance",
    Column.MISSING_REWARDS: "batch/missing_rewards",
    Column.OBSERVED_TASKS: "sampler/observed",
    Column.STEP_SECONDS: "time/step",
    Column.TOKENS_PER_SECOND: "time/tokens_per_second",
}
"""Name of each metric in ``metrics.jsonl``."""
MEANS = {
    Column.REWARD: ("reward/", "/mean"),
    Column.REWARD_STD: ("reward/", "/std"),
    Column.ZERO_ADVANTAGE: ("advantage/", "/fraction_zero"),
    Column.VALIDATION: ("val/", "/pass@1"),
}
"""Start and end of the names of a metric that each role or data source has."""
_TRAJECTORY = "trajectories.list.element"
_LEAVES = [
    "step", "batch", "task_id", "is_correct", "termination_reason", "metrics",
    *(f"{_TRAJECTORY}.{name}" for name in ("uid", "name", "reward_given", "reward_used", "components")),
    *(f"{_TRAJECTORY}.steps.list.element.{name}" for name in ("response_start", "end", "finish_reason", "text")),
]  # fmt: skip


def read_run(path: Path, rollouts: Path | None = None) -> RunData:
    """Read the metrics and rollouts of a run.

    Args:
        path: run directory of rllm or prime-rl, output directory or ``trainer_state.json`` of TRL, or file of verl.
        rollouts: directory with verl's ``rollout_data_dir``, or with TRL's completions.

    Raises:
        ConfigError: `path` contains no run that this program can read.
    """
    from rllm.builtin.doctor.other_frameworks import read_trl, read_verl
    from rllm.builtin.doctor.prime_rl import read_prime_rl

    if not path.exists():
        raise no_run_error(path)
    for read in (read_directory, read_trl, read_verl, read_prime_rl):
        run = read(path, rollouts)
        if run is not None:
            return run.with_metrics_of_rollouts()
    raise ConfigError(
        "run-not-found",
        f"{path} contains no run of rllm, TRL, verl or prime-rl.",
        "Use a run directory, the output directory of TRL or prime-rl, or the .jsonl file of verl's file logger.",
    )


def read_directory(path: Path, rollouts: Path | None) -> RunData | None:
    """Read a run directory of rllm. None if `path` is something else."""
    if not path.is_dir() or not any(file for depth in range(3) for file in path.glob(f"{'*/' * depth}{PLUGINS}")):
        return None
    directory = one_run(path).directory
    lines = read_metrics(directory)
    steps = np.array(sorted({line["step"] for line in lines}), np.int64)
    if not len(steps):
        raise ConfigError("no-steps", f"{path} has no finished step.", "Run the command again after the first step.")
    table = Lines(steps, lines)
    config = _read_config(directory)
    metrics = {column: table.values(name) for column, name in PREFIXES.items() if table.has(name)}
    names: dict[Column, str] = {column: name for column, name in PREFIXES.items() if table.has(name)}
    for column, (start, end) in MEANS.items():
        if found := [name for name in table.names if name.startswith(start) and name.endswith(end)]:
            found = [name for name in found if name != "reward/greedy/mean"]
            metrics[column], names[column] = table.mean(found), found[0]
    if table.has("batch/prefix_breaks"):
        metrics[Column.PREFIX_BREAKS] = table.values("batch/prefix_breaks") / table.values("batch/episodes")
        names[Column.PREFIX_BREAKS] = "batch/prefix_breaks"
    if table.has("batch/ended_error"):
        metrics[Column.FAILED] = table.values("batch/ended_error") + table.values("batch/ended_timeout")
        names[Column.FAILED] = "batch/ended_error"
    stages = [name for name in table.names if name.startswith("time/")]
    stages = [name for name in stages if name not in ("time/step", "time/tokens_per_second", "time/generated_ahead")]
    return RunData(
        name=str(short_path(directory)),
        source="rllm",
        steps=steps,
        metrics=metrics,
        names=names,
        not_finite=table.steps_not_finite(names),
        stages={name.removeprefix("time/"): table.values(name) for name in stages},
        rollouts=_read_rollouts(directory),
        token_kl=_read_token_kl(directory),
        expected_tasks=_tasks_of_an_epoch(directory, config, len(steps)),
    )


class Lines:
    """Lines of a log as columns over steps. A later line of the same step adds values."""

    def __init__(self, steps: Iterable[int], lines: Sequence[Mapping[str, Any]]) -> None:
        """`lines` have a key ``step``, whose value is in `steps`."""
        self._columns: dict[str, Floats] = {}
        self._not_finite: dict[str, list[int]] = {}
        rows = {int(step): row for row, step in enumerate(steps)}
        for line in lines:
            for name, value in line.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    column = self._columns.setdefault(name, np.full(len(rows), np.nan))
                    column[rows[int(line["step"])]] = value
                    if not np.isfinite(value):
                        self._not_finite.setdefault(name, []).append(int(line["step"]))

    @property
    def names(self) -> list[str]:
        """All metrics, in the order of the log."""
        return list(self._columns)

    def has(self, name: str) -> bool:
        """True if a line has this metric."""
        return name in self._columns

    def values(self, name: str) -> Floats:
        """Return the (steps,) values of a metric."""
        return self._columns[name]

    def mean(self, names: Sequence[str]) -> Floats:
        """Return the mean of several metrics at each step. NaN at steps without any."""
        values = np.stack([self._columns[name] for name in names])
        known = np.isfinite(values)
        return np.where(known.any(0), np.where(known, values, 0.0).sum(0) / np.maximum(known.sum(0), 1), np.nan)

    def steps_not_finite(self, names: Mapping[Column, str]) -> dict[Column, tuple[int, ...]]:
        """Return the steps at which each metric was logged as NaN or infinite."""
        return {column: tuple(self._not_finite[name]) for column, name in names.items() if name in self._not_finite}


def _read_config(directory: Path) -> Mapping[str, Any]:
    try:
        loaded = yaml.safe_load((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return loaded if isinstance(loaded, Mapping) else {}


def _value(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key. None if it does not exist."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _tasks_of_an_epoch(directory: Path, config: Mapping[str, Any], finished: int) -> int | None:
    """Return the number of tasks that an epoch draws, rounded down to whole batches. None if no epoch is complete."""
    epochs, batch = _value(config, "rllm.trainer.total_epochs"), _value(config, "data.train_batch_size")
    batches = _value(config, "rllm.trainer.total_batches")
    try:
        total = json.loads((directory / LENGTH).read_text(encoding="utf-8"))["total_steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (isinstance(epochs, int) and isinstance(batch, int) and isinstance(total, int)) or (batches or 0) > 0:
        return None
    steps = total // max(epochs, 1)
    # The rollouts of some steps are not read in a longer run.
    return max(steps - 1, 1) * batch if 0 < steps <= finished <= MOST_STEPS else None


def spread(files: Mapping[int, Path]) -> list[Path]:
    """Return at most `MOST_STEPS` files, evenly spaced, in order."""
    steps = sorted(files)
    if len(steps) > MOST_STEPS:
        steps = [steps[round(i)] for i in np.linspace(0, len(steps) - 1, MOST_STEPS)]
    return [files[step] for step in steps]


def _read_rollouts(directory: Path) -> Rollouts | None:
    """Return the recorded rollouts. None if there is no readable record."""
    uses = _read_outcomes(directory)
    rows: list[dict[str, Any]] = []
    for file in spread(step_files(directory / "record" / "episodes")):
        try:
            rows += [row for episode in read_columns(file, _LEAVES).to_pylist() for row in _rows(episode, uses)]
        except RecordError:
            continue  # `rllm record check` reports damaged files
    return make_rollouts(rows) if rows else None


def _read_outcomes(directory: Path) -> dict[str, str]:
    """Return the use of each trajectory by uid: ``trained``, or the rule that removed it."""
    found: dict[str, str] = {}
    for file in spread(step_files(directory / "record" / "outcomes")):
        try:
            table = read_columns(file, ["trajectory", "outcome", "rule"])
        except RecordError:
            continue
        uids, outcomes, rules = (table[name].to_pylist() for name in ("trajectory", "outcome", "rule"))
        for uid, outcome, rule in zip(uids, outcomes, rules, strict=True):
            found[uid] = outcome if outcome in ("trained", "waiting") else rule
    return found


def _rows(episode: Mapping[str, Any], uses: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Return a row for each trajectory of an episode."""
    metrics = dict(episode["metrics"] or ())
    failed = episode["termination_reason"] if episode["termination_reason"] in ("error", "timeout") else None
    for trajectory in episode["trajectories"] or ():
        turns: Sequence[Mapping[str, Any]] = trajectory["steps"] or []
        texts = [turn["text"] for turn in turns]
        used = trajectory["reward_used"]
        yield {
            "uid": trajectory["uid"],
            "step": episode["step"],
            "task": episode["task_id"],
            "group": (episode["step"], episode["batch"], episode["task_id"], trajectory["name"]),
            "reward": trajectory["reward_given"] if used is None else used,
            "solved": float(bool(episode["is_correct"])),
            "length": float(sum(turn["end"] - turn["response_start"] for turn in turns)),
            "truncated": float(bool(turns) and turns[-1]["finish_reason"] == "length"),
            "text": "\n".join(texts) if texts and None not in texts else None,
            "outcome": failed or uses.get(trajectory["uid"]),
            "disagreement": metrics.get(DISAGREEMENT),
            "components": _components(dict(trajectory["components"] or ()), metrics),
        }


def _components(weighted: Mapping[str, float], metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Return each reward without its weight, by name. Parts of a reward (``name.part``) are not included."""
    plain = {name: metrics.get(f"reward.{name}", value) for name, value in weighted.items()}
    return {name: value for name, value in plain.items() if name.rpartition(".")[0] not in plain}


def make_rollouts(rows: Sequence[Mapping[str, Any]]) -> Rollouts:
    """Return rollouts from one mapping each, with the fields of `Rollouts`. Missing fields are not recorded."""
    numbers: dict[Any, int] = {}
    names = list(dict.fromkeys(name for row in rows for name in row.get("components", {})))

    def floats(values: Iterator[Any]) -> Floats:
        return np.array([np.nan if value is None else float(value) for value in values])

    def objects(name: str) -> NDArray[np.object_]:
        found = np.empty(len(rows), object)
        found[:] = [row.get(name) for row in rows]
        return found

    return Rollouts(
        uid=objects("uid"),
        step=np.array([row["step"] for row in rows], np.int64),
        task=objects("task"),
        group=np.array([numbers.setdefault(row["group"], len(numbers)) for row in rows], np.int64),
        reward=floats(row.get("reward") for row in rows),
        solved=floats(row.get("solved") for row in rows),
        length=floats(row.get("length") for row in rows),
        truncated=floats(row.get("truncated") for row in rows),
        text=objects("text"),
        outcome=objects("outcome"),
        disagreement=floats(row.get("disagreement") for row in rows),
        components={name: floats(row.get("components", {}).get(name) for row in rows) for name in names},
    )


def _read_token_kl(directory: Path) -> dict[int, float]:
    """Return the mean KL divergence (k3) by position in the trained tokens, from the last tenth of the steps."""
    files = step_files(directory / "record" / "traces")
    sums: dict[int, list[float]] = {}
    for step in sorted(files)[-max(1, len(files) // 10) :]:
        try:
            rows = read_columns(files[step], ["epoch", "ref_logprob", "logprob"]).to_pylist()
        except RecordError:
            continue
        for row in rows:
            if row["epoch"] != 0 or not row["ref_logprob"] or not row["logprob"]:
                continue
            difference = np.array(row["ref_logprob"], float) - np.array(row["logprob"], float)
            for position, value in enumerate(np.exp(np.minimum(difference, 20)) - difference - 1):
                if np.isfinite(value):
                    sums.setdefault(position, []).append(float(value))
    return {position: float(np.mean(values)) for position, values in sums.items()}
