"""Episodes with a real server, and the same episodes with the client of OpenEnv."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from expecting import expect_error
from openenv.core import GenericEnvClient

from rllm_core.contracts.environment import Outcome
from rllm_core.errors import ConfigError, RolloutError
from rllm_envs.openenv.environment import OpenEnv
from rllm_envs.openenv.options import OpenEnvParams
from rllm_envs.openenv.server import find_server, read_form
from rllm_envs.seeds import SEEDS

from .oe_games import SESSIONS, TASKS, Say

APP = "oe_games:app"


async def roll_out(responses: Sequence[str], task: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    """Return the first observation, and the outcomes of the responses until the episode ends."""
    environment = OpenEnv(OpenEnvParams(**{"server": APP, "prompt": "Guess.", **options}))
    try:
        results: list[Any] = [await environment.reset(task or {"seed": 0})]
        for response in responses:
            results.append(await environment.step(response))
            if results[-1].done:
                break
        return results
    finally:
        await environment.close()


def run(responses: Sequence[str], task: dict[str, Any] | None = None, **options: Any) -> tuple[str, list[Outcome]]:
    first, *outcomes = asyncio.run(roll_out(responses, task, **options))
    return first, outcomes


def test_rewards_and_observations_equal_those_of_the_client() -> None:
    ended = set()
    for seed in range(4):
        with GenericEnvClient(find_server(OpenEnvParams(server=APP)).url).sync() as client:
            expected = [client.reset(seed=seed)]
            while not expected[-1].done:
                expected.append(client.step({"digit": len(expected) + 5}))
        first, outcomes = run([f"I guess {digit}" for digit in (6, 7, 8)], {"seed": seed})
        assert first == f"Guess.\n{expected[0].observation['text']}"
        assert [(each.reward, each.done) for each in outcomes] == [(each.reward, each.done) for each in expected[1:]]
        assert [each.observation for each in outcomes[:-1]] == [each.observation["text"] for each in expected[1:-1]]
        ended.add(len(outcomes))
    assert len(ended) > 1, "the seeds give the same digit"


def test_response_without_action_costs_a_turn() -> None:
    _, outcomes = run(["six", "77", "1", "1", "1"])
    assert [each.reward for each in outcomes] == [0.0, 0.0, -0.25, -0.25, -0.25]
    assert outcomes[-1].metrics == {"turns": 5.0, "invalid": 2.0}


def test_episodes_wait_for_a_free_session() -> None:
    async def episodes() -> list[list[Any]]:
        return await asyncio.gather(*(roll_out(["1", "1", "1"], {"seed": 1}) for _ in range(3 * SESSIONS)))

    ended = asyncio.run(episodes())
    assert all(results == ended[0] for results in ended)
    assert ended[0][-1].done


def test_full_server_fails_after_the_wait() -> None:
    async def episodes() -> None:
        held = [OpenEnv(OpenEnvParams(server=APP)) for _ in range(SESSIONS)]
        try:
            for each in held:
                await each.reset({"seed": 1})
            with expect_error(RolloutError, "environment-failed", "CAPACITY_REACHED"):
                await roll_out(["1"], wait=0.2)
        finally:
            for each in held:
                await each.close()

    asyncio.run(episodes())


@pytest.mark.parametrize(("fails", "cause"), [("reset", "no board"), ("step", "board is gone")])
def test_failure_of_the_environment_has_no_reward(fails: str, cause: str) -> None:
    with expect_error(RolloutError, "environment-failed", cause):
        run(["1", "1", "1"], reset={"fails": fails})


@pytest.mark.parametrize("fails", ["reward", "nan"])
@pytest.mark.parametrize(("no_reward", "missing"), [("missing", {0, 1, 2}), ("last", {-1}), ("zero", set())])
def test_null_is_a_missing_reward(fails: str, no_reward: str, missing: set[int]) -> None:
    _, outcomes = run(["1", "1", "1"], reset={"fails": fails}, no_reward=no_reward)
    for at, outcome in enumerate(outcomes):
        is_missing = at in missing or at - len(outcomes) in missing
        assert (math.isnan(outcome.reward), bool(outcome.reward_error)) == (is_missing, is_missing)


def test_ended_server_fails_the_episode_and_restarts() -> None:
    expected = run(["1", "1", "1"])
    with expect_error(RolloutError, "environment-failed"):
        run(["1"], reset={"fails": "server"})
    assert run(["1", "1", "1"]) == expected


def test_tasks_are_seeds_and_splits_share_none() -> None:
    params = OpenEnvParams(server=APP, train_size=2, val_size=1, seed=5)
    assert [task.data for task in OpenEnv.tasks("train", params)] == [{"seed": 5}, {"seed": 6}]
    assert [task.data for task in OpenEnv.tasks("val", params)] == [{"seed": SEEDS + 5}]


def test_tasks_of_the_task_api_have_an_index() -> None:
    params = OpenEnvParams(server=APP, train_split="train", val_split="test", train_size=9, val_size=2)
    assert [task.data["index"] for task in OpenEnv.tasks("train", params)] == list(range(TASKS["train"]))
    val = OpenEnv.tasks("val", params)
    assert [(task.data["split"], task.data["index"]) for task in val] == [("test", 0), ("test", 1)]
    first, (outcome,) = run(["1"], dict(val[1].data))
    assert (first, outcome.reward) == ("Guess.\nGuess a digit, test.", 1.0)


@pytest.mark.parametrize(
    ("code", "options", "value"),
    [
        ("service-unreachable", {"server": "http://127.0.0.1:9"}, "http://127.0.0.1:9/schema"),
        ("unknown-choice", {"server": "no_such_module:app"}, "no_such_module"),
        ("unknown-choice", {"server": "oe_games:ap"}, "ap"),
        ("unknown-choice", {"action": "digits"}, "digit"),
        ("missing-api-key", {"token_variable": "TOKEN_OF_NO_SERVER"}, "TOKEN_OF_NO_SERVER"),
    ],
)
def test_dry_run_names_what_is_missing(code: str, options: dict[str, Any], value: str) -> None:
    with expect_error(ConfigError, code, value):
        find_server(OpenEnvParams(**{"server": APP, **options}))


def test_action_with_several_fields_is_a_json_object() -> None:
    form = read_form(Say.model_json_schema(), None)
    assert form.field is None
    assert form.read('{"message": "no"} or {"message": "hi", "loud": true}') == {"message": "hi", "loud": True}
    assert form.read('{"loud": true}') is None
    assert form.read("hi {") is None
    assert json.loads(form.request[form.request.index("{") :])["properties"].keys() == {"message", "loud"}
    assert read_form(Say.model_json_schema(), "message").read(" hi\n") == {"message": "hi"}


@pytest.mark.parametrize("server", ["127.0.0.1:8000", "localhost:8000", "http://", "oe_games"])
def test_address_without_a_scheme_is_rejected(server: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        OpenEnvParams(server=server)
