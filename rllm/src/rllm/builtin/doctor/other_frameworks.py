"""Read the logs of TRL and verl."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rllm.builtin.doctor.reading import Lines, make_rollouts
from rllm.builtin.doctor.run_data import Column, Floats, Rollouts, RunData, Source
from rllm_core.errors import ConfigError

STATE = "trainer_state.json"
TRL = {
    Column.REWARD: "reward",
    Column.REWARD_STD: "reward_std",
    Column.ZERO_ADVANTAGE: "frac_reward_zero_std",
    Column.VALIDATION: "eval_reward",
    Column.LOSS: "loss",
    Column.ENTROPY: "entropy",
    Column.KL_REFERENCE: "kl",
    Column.CLIPPED: "clip_ratio/region_mean",
    Column.GRADIENT: "grad_norm",
    Column.LEARNING_RATE: "learning_rate",
    Column.LENGTH: "completions/mean_length",
    Column.TRUNCATED: "completions/clipped_ratio",
    Column.MISMATCH: "sampling/sampling_logp_difference/mean",
    Column.STEP_SECONDS: "step_time",
}
VERL = {
    Column.REWARD: "critic/score/mean",
    Column.LOSS: "actor/pg_loss",
    Column.ENTROPY: "actor/entropy",
    Column.KL_REFERENCE: "actor/kl_loss",
    Column.KL_STEP: "actor/ppo_kl",
    Column.CLIPPED: "actor/pg_clipfrac",
    Column.GRADIENT: "actor/grad_norm",
    Column.LEARNING_RATE: "actor/lr",
    Column.LENGTH: "response_length/mean",
    Column.TRUNCATED: "response_length/clip_ratio",
    Column.MISMATCH: "training/rollout_probs_diff_mean",
    Column.EFFECTIVE_SAMPLES: "rollout_corr/rollout_is_eff_sample_size",
    Column.EXPLAINED_VARIANCE: "critic/vf_explained_var",
    Column.STEP_SECONDS: "perf/time_per_step",
    Column.TOKENS_PER_SECOND: "perf/throughput",
}
LOGGED = frozenset({"step", "input", "output", "gts", "score", "request_id", "acc", "pred"})
"""Columns of verl's rollouts that are no component of the reward."""


def read_trl(path: Path, rollouts: Path | None) -> RunData | None:
    """Read an output directory or a ``trainer_state.json`` of TRL. None if `path` is something else."""
    states = [path] if path.name == STATE else sorted(path.glob(f"**/{STATE}"), key=lambda each: each.stat().st_mtime)
    if not states:
        return None
    state = _read_json(states[-1])
    lines = [line for line in state.get("log_history", ()) if isinstance(line.get("step"), int)]
    lines = [line for line in lines if "train_runtime" not in line]
    directory = path if path.is_dir() else path.parent
    found = sorted((rollouts or directory).glob("**/completions_*.parquet"))
    return make_run("trl", path, lines, TRL, _read_completions(found, _reward_weights(lines)))


def _reward_weights(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the weights of TRL's reward functions, fitted to their means in the log. Empty if they do not fit."""
    names = dict.fromkeys(name for line in lines for name in line if re.fullmatch("rewards/.+/mean", name))
    rows = np.array([[line.get(name, np.nan) for name in ("reward", *names)] for line in lines], float)
    reward, *means = rows[np.isfinite(rows).all(1)].T
    if not names or not len(reward):
        return {}
    weights, *_ = np.linalg.lstsq(np.stack(means, 1), reward, rcond=None)
    if not np.allclose(weights @ means, reward, atol=1e-4):
        return {}
    return {name.split("/", 1)[1].removesuffix("/mean"): float(w) for name, w in zip(names, weights, strict=True)}


def _read_completions(files: Sequence[Path], weights: Mapping[str, float]) -> Rollouts | None:
    """Return the rollouts of TRL's completion files. None without a file."""
    import pyarrow.parquet as pq

    rows = [_completion(row, weights) for file in files for row in pq.read_table(file).to_pylist()]
    return make_rollouts(rows) if rows else None


def _completion(row: Mapping[str, Any], weights: Mapping[str, float]) -> dict[str, Any]:
    """Return a row of TRL's completions. Without weights, each number between completion and advantage is a reward."""
    components = {
        name: float(value)
        for name, value in row.items()
        if (name in weights if weights else name not in ("step", "advantage"))
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }
    task = _text(row["prompt"])
    known = [weights.get(name, 1.0) * value for name, value in components.items() if np.isfinite(value)]
    reward = sum(known) if components else None
    return {
        "step": row["step"],
        "task": task,
        "group": (row["step"], task),
        "reward": reward,
        "length": float(len(_text(row["completion"]))),
        "text": _text(row["completion"]),
        "components": components,
    }


def _text(value: Any) -> str:
    """Return the text of a prompt or completion, which may be a list of messages."""
    if isinstance(value, str):
        return value
    return "\n".join(str(message.get("content")) for message in value or ())


def read_verl(path: Path, rollouts: Path | None) -> RunData | None:
    """Read the file of verl's file logger. None if `path` is something else."""
    files = [path] if path.is_file() else sorted(filter(Path.is_file, path.glob("*.jsonl")))
    for file in files:
        lines = [line for line in read_lines(file) if isinstance(line.get("data"), Mapping)]
        if lines:
            flat = [
                _finite_or_nan(line["data"]) | {"step": line["step"]}
                for line in lines
                if isinstance(line.get("step"), int)
            ]
            found = sorted(rollouts.glob("*.jsonl"), key=_order) if rollouts else []
            return make_run("verl", path, flat, VERL, _read_generations(found))
    return None


def _finite_or_nan(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a step of verl. Its logger writes NaN and infinite values as null."""
    return {name: np.nan if value is None else value for name, value in data.items()}


def _order(file: Path) -> tuple[int, str]:
    return (int(file.stem) if file.stem.isdecimal() else 0, file.stem)


def _read_generations(files: Sequence[Path]) -> Rollouts | None:
    """Return the rollouts of verl's ``rollout_data_dir``. None without a file."""
    rows = [
        {
            "step": line["step"],
            "task": str(line.get("input")),
            "group": (line["step"], str(line.get("input"))),
            "reward": line.get("score"),
            "solved": float(line["acc"]) if isinstance(line.get("acc"), int | float) else None,
            "length": float(len(str(line.get("output") or ""))),
            "text": line.get("output"),
            "components": {
                name: float(value)
                for name, value in line.items()
                if name not in LOGGED and isinstance(value, int | float)
            },
        }
        for file in files
        for line in read_lines(file)
        if isinstance(line.get("step"), int)
    ]
    return make_rollouts(rows) if rows else None


def make_run(
    source: Source,
    path: Path,
    lines: Sequence[Mapping[str, Any]],
    columns: Mapping[Column, str] | Mapping[Column, list[str]],
    rollouts: Rollouts | None,
) -> RunData:
    """Return a run from the lines of a log, with the names of each metric in it."""
    steps = sorted({int(line["step"]) for line in lines} | ({int(s) for s in rollouts.step} if rollouts else set()))
    if not steps:
        raise ConfigError("no-steps", f"{path} has no finished step.", "Run the command again after the first step.")
    table = Lines(steps, lines)
    metrics: dict[Column, Floats] = {}
    names: dict[Column, str] = {}
    for column, wanted in columns.items():
        found = [name for name in ([wanted] if isinstance(wanted, str) else wanted) if table.has(name)]
        if found:
            metrics[column], names[column] = table.mean(found), found[0]
    for start in ("timing_s/", "time/"):
        stages = {name.removeprefix(start): table.values(name) for name in table.names if name.startswith(start)}
        stages.pop("step", None)
        if stages:
            break
    validations = [name for name in table.names if name.startswith("val-core/") and "/mean@" in name]
    if validations:
        metrics[Column.VALIDATION], names[Column.VALIDATION] = table.mean(validations), validations[0]
    return RunData(
        name=str(path),
        source=source,
        steps=np.array(steps, np.int64),
        metrics=metrics,
        names=names,
        not_finite=table.steps_not_finite(names),
        stages=stages,
        rollouts=rollouts,
    )


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("log-unreadable", f"{file} cannot be read: {error}.", "Copy the file again.") from error
    return value if isinstance(value, Mapping) else {}


def read_lines(file: Path) -> Iterator[Mapping[str, Any]]:
    """Return the objects of a JSON Lines file. A line that is cut off is not used."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, Mapping):
                yield value
