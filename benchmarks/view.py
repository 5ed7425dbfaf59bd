"""Cost of viewing a large run: ``python benchmarks/view.py [STEPS]`` prints one line per measurement.

The run has 100 steps with 1,000 trajectories each (100,000), with two turns of 100 tokens. The newest step has traces,
because a page reads the traces of one step. CPU seconds are the server process's (`/proc`): from its start to its first
answer, until all steps are read, and of one answer each (mean of 20). Memory is the peak of the process. Targets: list
0.5 s, filter 1 s, trajectory 1 s, memory 400 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rllm_record.steps.files import CONTENT_KEY, KINDS, OBJECTIVE_KEY
from rllm_record.steps.parquet import VERSION, VERSION_KEY
from rllm_view.serving import KEY_HEADER, KEY_VARIABLE

GROUPS, MEMBERS, TURNS, PROMPT, RESPONSE = 125, 8, 2, 20, 80
REPEATS = 20
KEY = "benchmark"
_random = np.random.default_rng(0)


def write(run: Path, kind: str, step: int, rows: list[dict[str, Any]]) -> None:
    """Write a file of a record."""
    marks = {VERSION_KEY: str(VERSION), CONTENT_KEY: "tokens", OBJECTIVE_KEY: json.dumps({"losses": {}})}
    place = run / "record" / kind / f"step_{step:06d}.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, KINDS[kind]).replace_schema_metadata(marks)
    pq.write_table(table, place, compression="zstd", use_dictionary=False)


def turns(step: int) -> list[dict[str, Any]]:
    """Return the spans of one trajectory."""
    starts = range(0, TURNS * (PROMPT + RESPONSE), PROMPT + RESPONSE)
    observed = [{"role": "user", "text": "lower", "data": None}]
    fixed = {
        "segment_start": 0,
        "weight_version": step,
        "version_spans": [],
        "messages": observed,
        "text": "a response" * 20,
    }
    return [
        fixed | {"prompt_start": start, "response_start": start + PROMPT, "end": start + PROMPT + RESPONSE}
        for start in starts
    ]


def episode(step: int, group: int, member: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an episode and its outcome."""
    uid, reward = f"{step}.0:task-{group}:{member}", float(_random.random() < 0.3)
    peers = [f"{step}.0:task-{group}:{other}/0" for other in range(MEMBERS) if other != member]
    trajectory = {
        "uid": f"{uid}/0",
        "own_uid": uid,
        "name": "agent",
        "reward_given": reward,
        "reward_used": reward,
        "reward": reward,
        "components": [],
        "steps": turns(step),
        "ids": _random.integers(0, 30_000, TURNS * (PROMPT + RESPONSE)).tolist(),
        "logprobs": (-_random.random(TURNS * (PROMPT + RESPONSE))).tolist(),
        "info": "{}",
    }
    place = {"step": step, "batch": 0}
    generated = {"uid": uid, "id": f"task-{group}:{member}", "task_id": f"task-{group}", "data_source": "made"}
    ended = {"is_correct": reward > 0, "ending": "env_done", "error": "", "tries": 1, "metrics": [], "task": "{}"}
    outcome = {
        "trajectory": f"{uid}/0",
        "outcome": "trained",
        "rule": "",
        "numbers": [],
        "group": f"task-{group}:agent",
    }
    decided = {
        "peers": peers,
        "name": "agent",
        "episode": uid,
        "rollout_step": step,
        "estimator": "grpo",
        "advantage": reward,
    }
    return place | generated | ended | {"trajectories": [trajectory]}, place | outcome | decided


def trace(uid: str, step: int, epoch: int) -> dict[str, Any]:
    """Return the update's use of a trajectory."""
    at = [turn * (PROMPT + RESPONSE) + PROMPT + token for turn in range(TURNS) for token in range(RESPONSE)]
    names = ("logprob", "entropy", "weight", "policy_part", "kl_part", "entropy_part", "advantage")
    metrics = {name: _random.random(len(at)).tolist() for name in names}
    place = {"trajectory": uid, "segment": 0, "row": 0, "role": "agent", "rollout_step": step, "positions": at}
    return place | metrics | {"epoch": epoch, "optimizer_step": epoch}


def make_run(run: Path, steps: int) -> None:
    """The directory of a run."""
    for step in range(steps):
        pairs = [episode(step, group, member) for group in range(GROUPS) for member in range(MEMBERS)]
        write(run, "episodes", step, [generated for generated, _ in pairs])
        if step == steps - 1:
            write(
                run,
                "traces",
                step,
                [trace(outcome["trajectory"], step, epoch) for epoch in range(2) for _, outcome in pairs],
            )
            write(run, "updates", step, [{"epoch": epoch, "optimizer_step": epoch} for epoch in range(2)])
        write(run, "outcomes", step, [outcome for _, outcome in pairs])
    lines = [
        json.dumps({"step": step, "reward/agent/mean": 0.3, "train/weight_version": step + 1}) for step in range(steps)
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


class Server:
    """`rllm view` in its own process."""

    def __init__(self, run: Path) -> None:
        place = run.parent / "view.json"
        command = [sys.executable, "-m", "rllm", "view", str(run), "--announce", str(place)]
        self._process = subprocess.Popen(command, env={**os.environ, KEY_VARIABLE: KEY}, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._url = json.loads(place.read_text())["url"]

    def get(self, path: str, **query: object) -> bytes:
        """Return an answer."""
        url = f"{self._url}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(urllib.request.Request(url, headers={KEY_HEADER: KEY})) as response:
            return bytes(response.read())

    def cpu(self) -> float:
        """Return the CPU seconds of all its threads so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Return the peak memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def mean_cpu(self, call: Callable[[], object]) -> float:
        """Return the mean CPU seconds of a call."""
        before = self.cpu()
        for _ in range(REPEATS):
            call()
        return (self.cpu() - before) / REPEATS


def measure(run: Path, steps: int) -> None:
    """Print all values."""
    server = Server(run)
    try:
        server.get("")
        print(f"first answer           {server.cpu():7.2f} s of CPU")
        id = json.loads(server.get("api/runs"))["runs"][0]["id"]
        before = server.cpu()
        while json.loads(server.get(f"api/runs/{id}/rollouts", limit=1))["indexed"] < steps:
            time.sleep(0.2)
        print(f"all steps read in      {server.cpu() - before:7.2f} s of CPU")
        last = steps - 1
        questions: dict[str, Callable[[], bytes]] = {
            "list, sorted": lambda: server.get(f"api/runs/{id}/rollouts", order="reward", descending="true"),
            "filter": lambda: server.get(f"api/runs/{id}/rollouts", text="task-77:3", solved="true"),
            "steps": lambda: server.get(f"api/runs/{id}/steps"),
            "group": lambda: server.get(f"api/runs/{id}/group", step=last, group="task-77:agent"),
            "trajectory": lambda: server.get(f"api/runs/{id}/episode", step=last, uid=f"{last}.0:task-77:3/0"),
        }
        for name, ask in questions.items():
            size = len(ask()) / 1000
            print(f"{name:22} {server.mean_cpu(ask):7.3f} s of CPU, {size:.0f} kB")
        print(f"memory of the server   {server.megabytes():7.0f} MB")
    finally:
        server.end()


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        make_run(run, steps)
        size = sum(file.stat().st_size for file in run.rglob("*.parquet")) / 1e6
        print(f"{steps * GROUPS * MEMBERS} trajectories, {size:.0f} MB")
        measure(run, steps)


if __name__ == "__main__":
    main()
