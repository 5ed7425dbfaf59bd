"""Rewards of the evaluation of verifiers itself, with its own harness in a process per rollout."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.clients import EvalClientConfig
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.episode import Episode
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes.subprocess import SubprocessRuntime

SEAT = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


def evaluate(
    directory: Path, url: str, seats: Sequence[str], *, id: str, env: str = "", config: Mapping[str, Any] | None = None
) -> Sequence[Episode]:
    """Return the episodes of `vf-eval` for all tasks, in their order.

    The program of its harness runs with this Python. It would install the program's packages otherwise.
    """
    digest = hashlib.sha256(CHAT_PROGRAM_SOURCE.encode()).hexdigest()
    program = directory / f"{digest}.py"
    program.write_text(CHAT_PROGRAM_SOURCE)
    SubprocessRuntime.scripts_dir = str(directory)
    SubprocessRuntime._interpreters[str(program)] = sys.executable
    given = dict(config or {})
    raw = {
        **given,
        "id": env,
        "taskset": {**given.get("taskset", {}), "id": id},
        **{seat: {**SEAT, **given.get(seat, {})} for seat in seats},
    }
    settings = EvalConfig(
        env=raw,
        model="policy",
        client=EvalClientConfig(base_url=url, api_key_var="NO_KEY"),
        push=False,
        rich=None,
        output_dir=directory / "outputs",
    )
    return sorted(asyncio.run(run_eval(settings)), key=lambda episode: episode.task.data.idx)
