"""Rollouts with a real resources server of NeMo-Gym."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.builtin.tools.toolbox import Toolbox, runnable
from rllm_core.contracts.environment import Outcome
from rllm_core.data.messages import Response, ToolCall
from rllm_core.errors import ConfigError, RolloutError
from rllm_envs.nemo_gym.environment import NemoGym, check_row, check_server
from rllm_envs.nemo_gym.options import NemoGymParams

Call = tuple[str, Mapping[str, Any]]


@pytest.fixture(scope="session")
def rows(gym_directory: Path) -> list[dict[str, Any]]:
    """The examples of the server: each asks to add two numbers to a counter and to read it."""
    file = gym_directory / "resources_servers" / "example_session_state_mgmt" / "data" / "example.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def _response(calls: Sequence[Call]) -> Response:
    called = tuple(ToolCall(name=name, arguments=arguments, id=str(at)) for at, (name, arguments) in enumerate(calls))
    return Response(text="", content="", tool_calls=called)


async def _roll_out(url: str, row: Mapping[str, Any], calls: Sequence[Call]) -> tuple[list[str], Outcome]:
    """Call tools in one response, then end. Return the tools' results and the outcome."""
    environment = NemoGym(NemoGymParams(url=url))
    await environment.reset(row)
    toolbox = Toolbox([runnable(each) for each in environment.tools(row)], 60.0)
    answers = await toolbox.answers(_response(calls))
    return [str(answer.message["content"]) for answer in answers], await environment.step("done")


def _solve(row: Mapping[str, Any]) -> list[Call]:
    missing = row["expected_count"] - row["initial_count"]
    return [*[("increment_counter", {"count": 1})] * missing, ("get_counter_value", {})]


def test_reward_is_the_verification_of_the_server(counter: str, rows: list[dict[str, Any]]) -> None:
    results, solved = asyncio.run(_roll_out(counter, rows[0], _solve(rows[0])))
    _, failed = asyncio.run(_roll_out(counter, rows[0], []))

    assert json.loads(results[-1]) == {"count": rows[0]["expected_count"]}
    assert (solved.reward, solved.done) == (1.0, True)
    assert (failed.reward, failed.done) == (0.0, True)


def test_concurrent_rollouts_have_separate_sessions(counter: str, rows: list[dict[str, Any]]) -> None:
    async def run() -> list[tuple[list[str], Outcome]]:
        return await asyncio.gather(*(_roll_out(counter, row, _solve(row)) for row in rows * 3))

    assert [outcome.reward for _, outcome in asyncio.run(run())] == [1.0] * len(rows) * 3


def test_error_of_a_tool_is_a_result(counter: str, rows: list[dict[str, Any]]) -> None:
    results, outcome = asyncio.run(_roll_out(counter, rows[0], [("increment_counter", {"count": "many"})]))

    assert "int_parsing" in results[0]
    assert outcome.reward == 0.0


def test_failed_server_is_an_error_without_reward(counter: str, rows: list[dict[str, Any]]) -> None:
    """The server rejects a row without the expected count when it verifies."""
    row = {name: value for name, value in rows[0].items() if name != "expected_count"}
    with expect_error(RolloutError, "environment-failed", "/verify", "422"):
        asyncio.run(_roll_out(counter, row, []))


def test_stopped_server_is_an_error(rows: list[dict[str, Any]]) -> None:
    with expect_error(RolloutError, "environment-failed", "ConnectError"):
        asyncio.run(_roll_out("http://127.0.0.1:9", rows[0], []))


def test_check_accepts_a_resources_server_only(counter: str) -> None:
    check_server(NemoGymParams(url=counter))
    for url in ("http://127.0.0.1:9", "http://localhost:port", f"{counter}/nothing"):
        with expect_error(ConfigError, "service-unreachable", url):
            check_server(NemoGymParams(url=url))


def test_examples_of_nemo_gym_are_rows(gym_directory: Path) -> None:
    files = sorted(gym_directory.glob("resources_servers/*/data/example.jsonl"))
    accepted = 0
    for file in files:
        with file.open(encoding="utf-8") as lines:
            try:
                check_row(json.loads(next(lines)))
            except ConfigError as error:
                assert error.code == "tasks-not-for-environment"
            else:
                accepted += 1
    assert accepted > len(files) * 0.7
