"""Writes the directory ``run`` next to this file with prime-rl's own monitor of files.

prime-rl is in no package index. So download its repository (the run is from commit 559b4477, version 0.8.0). Install
verifiers 0.4.0, torch, wandb and orjson, and run ``python write_run.py DIRECTORY_OF_PRIME_RL``. All methods of the
monitor are executed. ``monitors/__init__.py`` is not, because it imports the monitors of other services.
"""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from types import ModuleType

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, Episode, PolicySpan, TrainRunInfo, TrainWorkInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, Error, Reward, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, ToolCall, ToolMessage, UserMessage

RUN = Path(__file__).with_name("run")


def make_episode(step: int, number: int, score: float) -> Episode:
    """A task with a tool. Its name is its number."""
    task = TraceTask(type="Sum", data=WireTaskData(idx=number, prompt="1+1"), key=f"sum-{number}", hash="h")
    call = ToolCall(id="c", name="add", arguments='{"a": 1}')
    messages = [
        UserMessage(content="1+1"),
        AssistantMessage(content=None, reasoning_content="easy", tool_calls=[call]),
        ToolMessage(tool_call_id="c", content="2"),
        AssistantMessage(content=f"It is {number}\u2028"),
    ]
    trace = Trace[WireTaskData, State, WireAgentConfig](
        task=task,
        agent=AgentInfo(config=WireAgentConfig()),
        nodes=[_node(place, message) for place, message in enumerate(messages)],
        rewards={"right": Reward(score=score), "short": Reward(score=0.5, weight=0.5)},
        is_completed=True,
        ok=True,
    )
    run = TrainRunInfo(id="t", work=TrainWorkInfo(step=step, policy=PolicySpan(start=1, end=2)))
    kind = Episode[WireTaskData, State, WireAgentConfig]
    return kind(env=EnvInfo(id="sum"), task=task, traces=[trace], ok=True, run=run)


def _node(place: int, message: UserMessage | AssistantMessage | ToolMessage) -> MessageNode:
    is_response = isinstance(message, AssistantMessage)
    return MessageNode(
        parent=place - 1 if place else None,
        message=message,
        sampled=is_response,
        token_ids=[10 * place, 10 * place + 1],
        mask=[False, is_response],
        logprobs=[-0.25] if is_response else [],
    )


async def write(prime_rl: Path) -> None:
    """Write steps 0 and 10. A reward is NaN, a rollout fails, is for evaluation, or is in a later batch."""
    sys.path[:0] = [str(prime_rl / "packages/prime-rl-configs/src"), str(prime_rl / "src")]
    package = ModuleType("prime_rl.monitors")
    package.__path__ = [str(prime_rl / "src/prime_rl/monitors")]
    sys.modules["prime_rl.monitors"] = package
    from prime_rl.configs.monitors import FileMonitorConfig
    from prime_rl.monitors.file import FileMonitor

    monitor = FileMonitor(FileMonitorConfig())
    await monitor.init(output_dir=RUN)
    first, unknown, later = (make_episode(0, number, score) for number, score in enumerate([1.0, math.nan, 0.25]))
    failed = make_episode(0, 3, 0.0)
    failed.traces, failed.ok, failed.errors = [], False, [Error(type="EmptyEpisode", message="no traces")]
    for episode in (first, unknown, later, failed):
        await monitor.log(episode, 0, "train", "all")
    await monitor.log([first], 0, "train", "effective")
    later.traces[0].nodes[3].advantages = [0.5]
    await monitor.log([later], 10, "train", "effective")
    last = make_episode(10, 0, -1.0)
    await monitor.log(last, 10, "train", "all")
    await monitor.log(make_episode(10, 7, 2.0), 10, "eval", "all")
    await monitor.log({"reward/all/mean": 0.5}, 0)
    await monitor.finalize()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
