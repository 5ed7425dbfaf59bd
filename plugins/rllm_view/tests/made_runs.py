"""Run directories with simple numbers."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rllm_record.steps.files import CONTENT_KEY, KINDS, OBJECTIVE_KEY
from rllm_record.steps.parquet import VERSION, VERSION_KEY

RESPONSE = 4
"""Default number of sampled tokens of a turn."""
PROMPT = 2
"""Number of prompt tokens before each response."""
CLIP_FACTOR = 0.5
CONFIG = """
rllm:
  composed:
  - from: command line
    set: '{"rllm": {"trainer": {"experiment_name": "made"}}}'
  record: tokens
  trainer: {total_batches: 4}
  rollout: {n: 4}
model: {name: tiny}
"""


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """Settings of a run. Each step runs `groups` tasks with `members` rollouts each. The first rollout is solved.

    If a step has several tasks, the last task is dropped.
    """

    steps: int = 3
    groups: int = 2
    members: int = 4
    turns: int = 2
    response: int = RESPONSE
    epochs: int = 2
    content: str = "tokens"
    traced: bool = True
    clips: bool = True
    advantages: tuple[float, float] = (0.75, -0.25)
    """Advantage of the first member of a group, and of the others."""
    kl_part: float = 0.0
    texts: Mapping[str, str] = field(default_factory=dict)
    """Name of a field -> the text that replaces it."""

    def text(self, name: str, usual: str) -> str:
        return self.texts.get(name, usual)


def make_run(directory: Path, shape: RunShape | None = None) -> Path:
    """Write a whole run, and return its directory."""
    shape = shape or RunShape()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(CONFIG, encoding="utf-8")
    used = [
        {"kind": kind, "name": shape.text(kind, name), "distribution": "rllm-core", "version": "0.1.0"}
        for kind, name in {"backend": "local", "estimator": "grpo", "loss": "ppo"}.items()
    ]
    (directory / "plugins.json").write_text(json.dumps(used))
    (directory / "length.json").write_text('{"total_steps": 4}')
    for step in range(shape.steps):
        write_step(directory, step, shape)
    return directory


def write_step(directory: Path, step: int, shape: RunShape) -> None:
    """Write the files of one step, outcomes last, and its line of metrics."""
    rows = step_rows(step, shape)
    losses = {"agent": {"name": shape.text("loss", "rllm-core/ppo"), "params": {}}}
    objective = {
        "rollout_correction": None,
        "losses": losses,
        "entropy_coeff": 0.01,
        "aggregation": shape.text("aggregation", "token-mean"),
    }
    for kind in KINDS:
        if kind in rows:
            more = {OBJECTIVE_KEY: json.dumps(objective)} if kind == "updates" else {}
            write_file(directory / "record", kind, step, rows[kind], shape.content, more)
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(metrics_of(step)) + "\n")


def metrics_of(step: int) -> dict[str, float]:
    return {
        "step": step,
        "actor/clip_fraction": 0.125,
        "actor/entropy": 2.0 - 0.1 * step,
        "actor/grad_norm": 0.5,
        "actor/kl_old_new": 0.01,
        "batch/solved": 0.25,
        "response_length/max": 8.0,
        "response_length/mean": 8.0,
        "reward/agent/mean": 0.25 + 0.01 * step,
        "staleness/max": 1.0,
        "staleness/mean": 0.5,
        "time/generate": 0.2,
        "time/update": 0.3,
        "time/step": 0.5,
        "train/weight_version": step + 1.0,
    }


def write_file(
    record: Path, kind: str, step: int, rows: Sequence[Any], content: str, more: Mapping[bytes, str] | None = None
) -> Path:
    """Write one file of a record under a temporary name, and rename it."""
    place = record / kind / f"step_{step:06d}.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    marks = {VERSION_KEY: str(VERSION), CONTENT_KEY: content, **(more or {})}
    table = pa.Table.from_pylist(list(rows), KINDS[kind].with_metadata(marks))
    temporary = place.with_suffix(".tmp")
    pq.write_table(table, temporary, compression="zstd", use_dictionary=False)
    temporary.replace(place)
    return place


def step_rows(step: int, shape: RunShape) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by kind of file."""
    rows: dict[str, list[dict[str, Any]]] = {"episodes": [], "outcomes": []}
    for number in range(shape.groups):
        uids = [f"{step}.0:task-{number}:{member}/0" for member in range(shape.members)]
        for member, uid in enumerate(uids):
            rows["episodes"].append(_episode(step, number, member, shape))
            rows["outcomes"].append(_outcome(step, number, uid, [each for each in uids if each != uid], member, shape))
    if shape.content == "tokens":
        rows["vocabulary"] = [
            {"id": id, "text": shape.text("token", f" w{id}")} for id in range(PROMPT + shape.response)
        ]
        trained = [row["trajectory"] for row in rows["outcomes"] if row["outcome"] == "trained"]
        epochs: Sequence[int | None] = range(shape.epochs) if shape.traced else [None]
        rows["traces"] = [_trace(step, uid, epoch, shape) for epoch in epochs for uid in trained]
        rows["updates"] = [{"epoch": epoch, "optimizer_step": epoch, **UPDATE} for epoch in epochs if epoch is not None]
    return rows


def _episode(step: int, number: int, member: int, shape: RunShape) -> dict[str, Any]:
    uid = f"{step}.0:task-{number}:{member}"
    reward = 1.0 if member == 0 else 0.0
    trajectory: dict[str, Any] = {
        "uid": f"{uid}/0",
        "own_uid": f"task-{number}:{member}/agent",
        "name": "agent",
        "reward_given": reward,
        "reward_used": reward if _is_trained(number, shape) else None,
        "reward": reward,
        "components": [(shape.text("component", "exact"), reward)],
        "steps": [_turn(step, turn, shape) for turn in range(shape.turns)],
    }
    if shape.content == "tokens":
        places = range(shape.turns * (PROMPT + shape.response))
        trajectory |= {
            "ids": [at % (PROMPT + shape.response) for at in places],
            "logprobs": [0.0 if at % (PROMPT + shape.response) < PROMPT else -1.0 - 0.01 * at for at in places],
            "info": "{}",
        }
    return {
        "uid": uid,
        "step": step,
        "batch": 0,
        "id": f"task-{number}:{member}",
        "task_id": shape.text("task_id", f"task-{number}"),
        "data_source": shape.text("data_source", "sums"),
        "is_correct": member == 0,
        "termination_reason": "env_done",
        "error": shape.text("error", ""),
        "tries": 1,
        "metrics": [(shape.text("metric", "guesses"), 3.0)],
        "trajectories": [trajectory],
        "task": json.dumps({"question": shape.text("task", "1 + 1?")}) if shape.content == "tokens" else None,
    }


def _turn(step: int, turn: int, shape: RunShape) -> dict[str, Any]:
    start = turn * (PROMPT + shape.response)
    row: dict[str, Any] = {
        "segment_start": 0,
        "prompt_start": start,
        "response_start": start + PROMPT,
        "end": start + PROMPT + shape.response,
        "weight_version": step,
        "version_spans": [],
        "finish_reason": shape.text("finish_reason", "stop"),
        "reward": None,
        "advantage": None,
    }
    if shape.content == "tokens":
        observations = [
            {
                "role": shape.text("role", "user"),
                "text": shape.text("message", f"question {turn}"),
                "data": None,
            }
        ]
        row |= {"messages": observations, "text": shape.text("response", f"answer {turn}"), "info": "{}"}
    return row


def _is_trained(number: int, shape: RunShape) -> bool:
    return shape.groups == 1 or number < shape.groups - 1


def _outcome(step: int, number: int, uid: str, peers: list[str], member: int, shape: RunShape) -> dict[str, Any]:
    trained = _is_trained(number, shape)
    return {
        "step": step,
        "trajectory": uid,
        "outcome": "trained" if trained else "dropped",
        "rule": "" if trained else shape.text("rule", "reject/all_solved"),
        "numbers": [] if trained else [("solved", 4.0)],
        "group": shape.text("group", f"task-{number}:agent"),
        "peers": peers,
        "name": "agent",
        "episode": uid.rpartition("/")[0],
        "rollout_step": step,
        "batch": 0,
        "estimator": shape.text("estimator", "grpo") if trained else None,
        "baseline": 0.25 if trained else None,
        "advantage": shape.advantages[member != 0] if trained else None,
    }


def _trace(step: int, uid: str, epoch: int | None, shape: RunShape) -> dict[str, Any]:
    at = [turn * (PROMPT + shape.response) + PROMPT + k for turn in range(shape.turns) for k in range(shape.response)]
    advantage = shape.advantages[not uid.endswith(":0/0")]
    row: dict[str, Any] = {
        "trajectory": uid,
        "segment": 0,
        "row": 0,
        "role": "agent",
        "rollout_step": step,
        "positions": at,
        "advantage": [advantage] * len(at),
    }
    if epoch is None:
        return row
    return row | {
        "epoch": epoch,
        "optimizer_step": epoch,
        "logprob": [-1.0 - 0.01 * place + 0.1 * epoch for place in at],
        "entropy": [2.0] * len(at),
        "weight": [0.125] * len(at),
        "clipped": [place == at[-1] for place in at] if shape.clips else None,
        # Growing with the place, and 0 for the last one: the loss clips it.
        "policy_part": [-advantage * 0.001 * place * (place != at[-1]) for place in at],
        "kl_part": [shape.kl_part] * len(at),
        "entropy_part": [-0.01] * len(at),
    }


UPDATE = {
    "loss": -0.5,
    "policy_loss": -0.4,
    "kl_loss": 0.0,
    "entropy_loss": -0.1,
    "grad_norm": 2.0,
    "clip_factor": CLIP_FACTOR,
    "learning_rate": 0.001,
    "loss_seed": None,
}


@contextmanager
def running(directory: Path) -> Iterator[None]:
    """Lock the directory of a run and write the status `running`."""
    status = json.dumps({"status": "running", "started": "2026-01-01T00:00:00+00:00"})
    (directory / "status.json").write_text(status)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
