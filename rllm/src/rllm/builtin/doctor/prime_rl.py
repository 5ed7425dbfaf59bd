"""Read a run of prime-rl: its ``metrics.jsonl``, and the episodes of verifiers in ``rollouts``.

The trainer and the orchestrator append to the same file, and both log ``time/step``. A validation's step is a float.
Numbers that are NaN or infinite are not written. Source: ``FileMonitor``, ``Orchestrator.finalize_train_batch``,
``Orchestrator.finalize_eval_batch`` and ``trainer/rl/train.py`` of prime-rl 0.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rllm.builtin.doctor.other_frameworks import make_run, read_lines
from rllm.builtin.doctor.reading import make_rollouts, spread
from rllm.builtin.doctor.run_data import Column, Rollouts, RunData

METRICS = "metrics.jsonl"
SPEED = "progress/tokens / time/step"
LOSS, GRADIENT = "loss/mean", "optim/grad_norm"
TRAIN = r"train/agg/all/(?P<agent>[^/]+)/"
"""Metrics of all finished rollouts of an agent, in all environments."""
NAMES = {
    Column.REWARD: TRAIN + "reward/mean",
    Column.VALIDATION: r"eval/.+/effective/[^/]+/avg@\d+",
    Column.LOSS: LOSS,
    Column.ENTROPY: "entropy/all/mean",
    Column.KL_STEP: "mismatch_kl/all/mean",
    Column.CLIPPED: "is_masked/mean",
    Column.GRADIENT: GRADIENT,
    Column.LEARNING_RATE: "optim/lr",
    Column.LENGTH: TRAIN + "num_output_tokens/mean",
    Column.TRUNCATED: TRAIN + "is_truncated/mean",
    Column.STALENESS: "off_policy/mean",
    Column.FAILED: "train/agg/all/has_error/mean",
    Column.STEP_SECONDS: "time/step",
    Column.TOKENS_PER_SECOND: SPEED,
}
"""Patterns of prime-rl's names. If several names fit, their mean is used.

``mismatch_kl`` is the KL divergence between the policy that sampled the tokens and the policy before the update.
"""
LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
"""Stop conditions after which verifiers counts a rollout as truncated."""


def read_prime_rl(path: Path, rollouts: Path | None) -> RunData | None:
    """Read a run directory of prime-rl, or the newest run in its output directory. None if `path` is something else."""
    found = [path] if path.is_file() else [path / METRICS, *path.glob(f"*/{METRICS}")]
    files = [file for file in found[:1] if file.is_file()] or found[1:]
    if not files:
        return None
    file = max(files, key=lambda each: each.stat().st_mtime)
    known = [line for line in read_lines(file) if isinstance(line.get("step"), int | float)]
    lines = _fill_gaps([_of_process({**line, "step": int(line["step"])}) for line in known])
    columns = {column: names for column, pattern in NAMES.items() if (names := _names(lines, pattern))}
    # Other programs also log ``time/step``, for example rllm.
    if not columns.keys() - {Column.STEP_SECONDS}:
        return None
    run = make_run("prime-rl", path, lines, columns, _read_traces(rollouts or file.parent / "rollouts"))
    return replace(run, updates_skip_zero_advantages=True)


def _of_process(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with the tokens per second instead of the orchestrator's own times."""
    if "progress/tokens" not in line:
        return line
    # The first step has no duration.
    speed = {SPEED: line["progress/tokens"] / line["time/step"]} if line.get("time/step") else {}
    return {name: value for name, value in line.items() if not name.startswith("time/")} | speed


def _fill_gaps(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines. Add a loss and a gradient of NaN to finished updates for which prime-rl wrote none."""
    has_gradient = any(GRADIENT in line for line in lines)
    finished = {line["step"] for line in lines if "time/forward_backward" in line}
    for name in (LOSS, GRADIENT) if has_gradient else (LOSS,):
        missing = finished - {line["step"] for line in lines if name in line}
        lines = lines + [{"step": step, name: np.nan} for step in sorted(missing)]
    return lines


def _names(lines: Sequence[Mapping[str, Any]], pattern: str) -> list[str]:
    """Return the names that fit a pattern, without agents whose rollouts never have an advantage, such as judges."""
    names = dict.fromkeys(name for line in lines for name in line)
    trained = {
        match["agent"]
        for line in lines
        for name, value in line.items()
        if (match := re.fullmatch(TRAIN + "is_trainable/mean", name)) and value > 0
    }
    matches = [match for name in names if (match := re.fullmatch(pattern, name))]
    of_trained = [match for match in matches if match.groupdict().get("agent") in trained]
    return [match.string for match in of_trained or matches]


def _read_traces(directory: Path) -> Rollouts | None:
    """Return the rollouts of all finished episodes, with the step that collected them. None without a file."""
    files = {
        int(file.parents[2].name.removeprefix("step_")): file
        for file in directory.glob("step_*/train/all/traces.jsonl")
    }
    order = spread(files)
    steps = {file: step for step, file in files.items()}
    rows = [row for file in order for episode in read_lines(file) for row in _rows(steps[file], episode)]
    if {row["reward"] for row in rows} <= {0.0, 1.0}:
        rows = [row | {"solved": row["reward"]} for row in rows]
    return make_rollouts(rows) if rows else None


def _rows(step: int, episode: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return a row for each trace of an agent that is trained."""
    for trace in episode["traces"]:
        agent = trace["agent"]
        if not agent.get("trainable", True):
            continue
        task = trace["task"]
        # verifiers writes a score that is NaN or infinite as null.
        scores = {
            name: each if each["score"] is not None else {**each, "score": np.nan}
            for name, each in trace["rewards"].items()
            if each is not None
        }
        texts = [node["message"].get("content") or "" for node in trace["nodes"] if node["sampled"]]
        ends = [call.get("finish_reason") for call in trace["calls"] if not call.get("error")]
        yield {
            "step": step,
            "task": task["data"].get("name") or task.get("key") or str(task["data"].get("idx")),
            "group": ((episode.get("group") or {}).get("id"), agent["name"]),
            "reward": sum(each["score"] * each["weight"] for each in scores.values()) if scores else None,
            "length": float(trace["num_output_tokens"]),
            "truncated": float(trace.get("stop_condition") in LIMITS or ends[-1:] == ["length"]),
            "text": "\n".join(texts),
            "components": {name: each["score"] for name, each in scores.items()},
        }
