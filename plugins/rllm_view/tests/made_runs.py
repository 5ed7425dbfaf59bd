"""Run directories with simple numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
class Made:
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


def make_run(directory: Path, made: Made | None = None) -> Path:
    """Write a whole run, and return its directory."""
    made = made or Made()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(CONFIG, encoding="utf-8")
    used = [
        {"kind": kind, "name": made.text(kind, name), "distribution": "rllm-core", "version": "0.1.0"}
        for kind, name in {"backend": "local", "estimator": "grpo", "loss": "ppo"}.items()
    ]
    (directory / "plugins.json").write_text(json.dumps(used))
    (directory / "length.json").write_text('{"total_steps": 4}')
    for step in range(made.steps):
        write_step(directory, step, made)
    return directory


def write_step(directory: Path, step: int, made: Made) -> None:
    """Write the files of one step, outcomes last, and its line of metrics."""
    rows = step_rows(step, made)
    losses = {"agent": {"name": made.text("loss", "rllm-core/ppo"), "params": {}}}
    objective = {
        "rollout_correction": None,
        "losses": losses,
        "entropy_coeff": 0.01,
        "aggregation": made.text("aggregation", "token-mean"),
    }
    for kind in KINDS:
        if kind in rows:
            more = {OBJECTIVE_KEY: json.dumps(objective)} if kind == "updates" else {}
            write_file(directory / "record", kind, step, rows[kind], made.content, more)
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


def step_rows(step: int, made: Made) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by kind of file."""
    rows: dict[str, list[dict[str, Any]]] = {"episodes": [], "outcomes": []}
    for number in range(made.groups):
        uids = [f"{step}.0:task-{number}:{member}/0" for member in range(made.members)]
        for member, uid in enumerate(uids):
            rows["episodes"].append(_episode(step, number, member, made))
            rows["outcomes"].append(_outcome(step, number, uid, [each for each in uids if each != uid], member, made))
    if made.content == "tokens":
        rows["vocabulary"] = [{"id": id, "text": made.text("token", f" w{id}")} for id in range(PROMPT + made.response)]
        trained = [row["trajectory"] for row in rows["outcomes"] if row["outcome"] == "trained"]
        epochs: Sequence[int | None] = range(made.epochs) if made.traced else [None]
        rows["traces"] = [_trace(step, uid, epoch, made) for epoch in epochs for uid in trained]
        rows["updates"] = [{"epoch": epoch, "optimizer_step": epoch, **UPDATE} for epoch in epochs if epoch is not None]
    return rows


def _episode(step: int, number: int, member: int, made: Made) -> dict[str, Any]:
    uid = f"{step}.0:task-{number}:{member}"
    reward = 1.0 if member == 0 else 0.0
    trajectory: dict[str, Any] = {
        "uid": f"{uid}/0",
        "own_uid": f"task-{number}:{member}/agent",
        "name": "agent",
        "reward_given": reward,
        "reward_used": reward if _is_trained(number, made) else None,
        "reward": reward,
        "components": [(made.text("component", "exact"), reward)],
        "steps": [_turn(step, turn, made) for turn in range(made.turns)],
    }
    if made.content == "tokens":
        places = range(made.turns * (PROMPT + made.response))
        trajectory |= {
            "ids": [at % (PROMPT + made.response) for at in places],
            "logprobs": [0.0 if at % (PROMPT + made.response) < PROMPT else -1.0 - 0.01 * at for at in places],
            "info": "{}",
        }
    return {
        "uid": uid,
        "step": step,
        "batch": 0,
        "id": f"task-{number}:{member}",
        "task_id": made.text("task_id", f"task-{number}"),
        "data_source": made.text("data_source", "sums"),
        "is_correct": member == 0,
        "termination_reason": "env_done",
        "error": made.text("error", ""),
        "tries": 1,
        "metrics": [(made.text("metric", "guesses"), 3.0)],
        "trajectories": [trajectory],
        "task": json.dumps({"question": made.text("task", "1 + 1?")}) if made.content == "tokens" else None,
    }


def _turn(step: int, turn: int, made: Made) -> dict[str, Any]:
    start = turn * (PROMPT + made.response)
    row: dict[str, Any] = {
        "segment_start": 0,
        "prompt_start": start,
        "response_start": start + PROMPT,
        "end": start + PROMPT + made.response,
        "weight_version": step,
        "version_spans": [],
        "finish_reason": made.text("finish_reason", "stop"),
        "reward": None,
        "advantage": None,
    }
    if made.content == "tokens":
        observations = [
            {"role": made.text("role", "user"), "text": made.text("message", f"question {turn}"), "data": None}
        ]
        row |= {"messages": observations, "text": made.text("response", f"answer {turn}"), "info": "{}"}
    return row


def _is_trained(number: int, made: Made) -> bool:
    return made.groups == 1 or number < made.groups - 1


def _outcome(step: int, number: int, uid: str, peers: list[str], member: int, made: Made) -> dict[str, Any]:
    trained = _is_trained(number, made)
    return {
        "step": step,
        "trajectory": uid,
        "outcome": "trained" if trained else "dropped",
        "rule": "" if trained else made.text("rule", "reject/all_solved"),
        "numbers": [] if trained else [("solved", 4.0)],
        "group": made.text("group", f"task-{number}:agent"),
        "peers": peers,
        "name": "agent",
        "episode": uid.rpartition("/")[0],
        "rollout_step": step,
        "batch": 0,
        "estimator": made.text("estimator", "grpo") if trained else None,
        "baseline": 0.25 if trained else None,
        "advantage": made.advantages[member != 0] if trained else None,
    }


def _trace(step: int, uid: str, epoch: int | None, made: Made) -> dict[str, Any]:
    at = [turn * (PROMPT + made.response) + PROMPT + k for turn in range(made.turns) for k in range(made.response)]
    advantage = made.advantages[not uid.endswith(":0/0")]
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
        "clipped": [place == at[-1] for place in at] if made.clips else None,
        # Growing with the place, and 0 for the last one: the loss clips it.
        "policy_part": [-advantage * 0.001 * place * (place != at[-1]) for place in at],
        "kl_part": [made.kl_part] * len(at),
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
