"""A training run in which one part never answers: ``python stuck_runs.py PART SLOW_AFTER``.

PART is ``environment``, ``tool``, ``reward``, ``sandbox`` or ``model``. Only rollouts of the task ``t2`` are stuck,
each in the second turn, in a real process or server. ``stuck`` is printed first. It ends when it is killed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from tool_model import save_tool_model

from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.reward import RewardPlugin, Rollout
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.data.messages import Response, ToolCall
from rllm_core.data.types import Step, Task
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.conversation import Conversation

STUCK = "t2"
SECONDS = 600
SETTINGS = {
    "rllm.env.name": "stuck",
    "rllm.rollout.n": 2,
    "rllm.trainer.output_dir": "runs",
    "rllm.trainer.experiment_name": "stuck",
    "rllm.trainer.total_batches": 1,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.logger": [],
    "data.train_batch_size": 4,
    "data.max_response_length": 4,
    "local.training_process": False,
}
PROGRAM = "```python\nimport sys, time\nif sys.stdin.read().strip() == 't2': time.sleep(600)\nprint(1)\n```"


def stay() -> None:
    """Never answer."""
    print(f"stuck {time.time()}", flush=True)
    time.sleep(SECONDS)


class TwoTurns(Environment):
    """Two turns. In the second one, the part is stuck."""

    part = ""

    def __init__(self, params: NoParams) -> None:
        self._turns = 0
        self._task = ""

    @classmethod
    def tasks(cls, split: Any, params: NoParams) -> Sequence[Task]:
        return [Task(id=f"t{n}", data={"id": f"t{n}", "tests": [{"input": f"t{n}", "output": "1"}]}) for n in range(4)]

    def reset(self, task: Mapping[str, Any]) -> str:
        self._task = task["id"]
        return "question"

    def tools(self, task: Mapping[str, Any]) -> Sequence[Callable[..., Any]]:
        def search(word: str) -> str:
            """Search a word."""
            self._turns += 1
            if self._turns == 2 and self._task == STUCK:
                stay()
            return word

        return [search] if self.part == "tool" else []

    def step(self, action: str) -> Outcome:
        self._turns += 1
        if self.part == "environment" and self._turns == 2 and self._task == STUCK:
            stay()
        return Outcome(observation="more", reward=0.0, done=self._turns > 1)


def score(rollout: Rollout) -> float:
    """Return 1, but never for the stuck task."""
    if rollout.data["id"] == STUCK:
        stay()
    return 1.0


class Server(BaseHTTPRequestHandler):
    """Answers each request, except for the second turn of the stuck task."""

    seen: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if f"/{STUCK}:" in self.path and self.seen.count(self.path) == 2:
            stay()
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None: ...


class Remote(EngineWrapper):
    """An engine that asks a server before each response."""

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._url = f"http://127.0.0.1:{server.server_port}"
        self._client = httpx.AsyncClient(timeout=None)

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        await self._client.get(f"{self._url}/{session.partition('/')[0]}")
        return await self.inner.generate(prompt_ids, sampling, session=session)


class RemoteObserver(Observer):
    """Puts the server before the engine."""

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        return Remote(engine)


def answer_as(part: str) -> Callable[[Conversation, Step], Response]:
    """Return a parser that reads a tool call or a program in each response, because the tiny model writes none."""
    parse = Conversation.parse_step

    def parse_step(self: Conversation, step: Step) -> Response:
        response = parse(self, step)
        if part == "tool":
            return replace(response, tool_calls=(ToolCall(name="search", arguments={"word": "x"}, id="1"),))
        return replace(response, content=PROGRAM) if part == "sandbox" else response

    return parse_step


def main(part: str, slow_after: float) -> None:
    """Start the run."""
    TwoTurns.part = part
    Conversation.parse_step = answer_as(part)  # type: ignore[method-assign]
    registry = Registry.load()
    workflow = {"rllm.workflow.name": "tool_calling" if part == "tool" else "multi_turn_workflow"}
    registry.add(EnvironmentPlugin(name="stuck", summary="For tests.", load=lambda: TwoTurns, defaults=workflow))
    registry.add(RewardPlugin(name="slow", summary="For tests.", load=lambda: lambda params: score, timeout=SECONDS))
    settings: dict[str, Any] = {
        **SETTINGS,
        "rllm.trainer.observers": [{"name": "pending_rollouts", "slow_after": slow_after}],
    }
    if part == "tool":
        (model := Path("model")).mkdir(exist_ok=True)
        save_tool_model(model)
        settings |= {"model.name": str(model), "rllm.workflow.workflow_args": {"tool_timeout": SECONDS}}
    if part in ("reward", "sandbox"):
        settings["rllm.reward"] = [{"name": "code", "seconds": SECONDS} if part == "sandbox" else "slow"]
    plan = make_plan(compose(registry, [layer_from_keys(settings, "the test")]), registry)
    run = RunDirectory.open(plan.config.rllm.trainer, overwrite=True)
    observers = [RemoteObserver()] if part == "model" else []
    loop = TrainingLoop(plan, run, train_tasks=load_tasks(plan, "train"), val_tasks=(), observers=observers)
    asyncio.run(loop.fit_async())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
