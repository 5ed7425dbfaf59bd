"""Stored sessions become the episodes that a run would have had."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from click.testing import CliRunner
from expecting import expect_error
from gateway_world import CALL, World

from rllm_core.data.types import TerminationReason
from rllm_core.errors import ConfigError
from rllm_gateway.calls import SessionRow
from rllm_gateway.command import gateway
from rllm_gateway.link import AttachedPolicy, OpenedSession
from rllm_record.steps import PlayedEpisode, StepFiles
from rllm_record.steps.files import sampler_of

Say = Callable[..., OpenedSession]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]


@pytest.fixture
def say(world: World) -> Say:
    """Open a session, ask in it what is given, one call after the other, reward it and close it."""

    def run(*words: str, reward: float | None = 1.0, role: str = "agent", close: bool = True, **spec: Any) -> Any:
        session = world.open(**spec)
        messages: list[Any] = []
        with openai.OpenAI(base_url=session.openai_url(role), api_key=session.key) as client:
            for each in words:
                messages.append({"role": "user", "content": each})
                response = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
                messages.append(response.choices[0].message.model_dump(exclude_none=True))
        if reward is not None:
            live = world.gateway.session(session.id, session.key)
            world.run(world.gateway.add_reward(live, role, reward))
        if close:
            world.close(session)
        return session

    return run


@pytest.fixture
def export(world: World, tmp_path: Path) -> Callable[..., list[PlayedEpisode]]:
    """The episodes that the command writes."""

    def run(*options: str) -> list[PlayedEpisode]:
        world.gateway.flush()
        directory = tmp_path / "episodes of it"
        words = ["episodes", "--store", str(tmp_path / "calls.db"), str(directory), *options]
        result = CliRunner().invoke(gateway, words, catch_exceptions=False)
        run.said = result.output  # type: ignore[attr-defined]
        files = StepFiles(directory)
        return [played for step in files.steps() for played in files.episodes(step)]

    return run


def names(played: Sequence[PlayedEpisode]) -> list[str]:
    """Ids of episodes, without the digest of what a named task is about."""
    return [re.sub(r"(?<=.)-[0-9a-f]{16}(?=:)", "", each.episode.id) for each in played]


def tasks(played: Sequence[PlayedEpisode]) -> list[str]:
    return [each.episode.id.rpartition(":")[0] for each in played]


def test_a_session_is_an_episode_with_its_tokens(say: Say, export: Any, world: World) -> None:
    say("hi", "and", metadata={"question": "1+1"})
    (played,) = export()
    (trajectory,) = played.episode.trajectories
    first, second = world.policy.calls
    assert trajectory.steps[1].prompt_ids.tolist() == second.prompt_ids.tolist()
    assert trajectory.steps[0].response_ids.tolist() == first.completion.token_ids.tolist()
    np.testing.assert_array_equal(trajectory.steps[0].logprobs, first.completion.logprobs)
    assert len(trajectory.tokens.segment_starts) == 1
    assert (trajectory.name, trajectory.reward, played.trajectories[0].reward_given) == ("agent", 1.0, 1.0)
    assert (played.task, played.episode.is_correct) == ({"question": "1+1"}, True)
    assert played.episode.termination_reason is TerminationReason.ENV_DONE
    assert trajectory.steps[0].text == "hello"
    assert trajectory.steps[0].weight_version == 3


def test_the_last_reply_has_what_rewards_look_at(say: Say, export: Any, world: World) -> None:
    world.policy.response = lambda prompt: CALL
    say("hi", metadata={"question": "1+1"})
    (played,) = export()
    rollout = played.episode.trajectories[0].steps[-1].info["attempt"]
    assert rollout["data"] == {"question": "1+1"}
    assert rollout["messages"][0] == {"role": "user", "content": "hi"}
    assert rollout["messages"][1]["tool_calls"][0]["function"]["name"] == "look_up"
    (call,) = rollout["response"]["tool_calls"]
    assert (call["name"], call["arguments"]) == ("look_up", {"word": "proof"})


def test_attempts_are_together_by_what_they_are_named_after(say: Say, export: Any) -> None:
    for rollout in ("a:0", "b:0", "a:1"):
        say("hi", rollout=rollout)
    assert names(export()) == ["a:0", "a:1", "b:0"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"metadata": {"question": "1+1"}}, {"metadata": {"question": "2+2"}}),
        ({"run": "first"}, {"run": "second"}),
        ({"metadata": {"question": "1+1"}, "run": "first"}, {"metadata": {"question": "1+1"}, "run": "second"}),
    ],
    ids=["runs of one name", "runs", "runs with the same data"],
)
def test_attempts_of_one_name_at_different_tasks_are_apart(say: Say, export: Any, one: Any, other: Any) -> None:
    for spec in (one, other, one):
        say("hi", rollout="0:0", **spec)
    first, same, second = tasks(export())
    assert first == same != second


def test_a_name_that_somebody_chose_is_one_task(say: Say, export: Any) -> None:
    for number in (1, 2):
        say("hi", rollout="weather:0", task_id="weather", metadata={"asked at": number})
    one, other = tasks(export())
    assert one == other


def test_a_validation_is_no_next_try_of_training(say: Say, export: Any) -> None:
    say("hi", rollout="0:0", retry=0)
    say("hi", rollout="0:0", retry=1, label="val")
    assert names(export()) == ["0:0"]
    assert "tried again" not in export.said


def test_attempts_without_a_name_are_together_by_their_task(say: Say, export: Any) -> None:
    for number in (1, 2, 1):
        say("hi", rollout="", metadata={"number": number})
    one, same, other = names(export())
    assert (one.partition(":")[0], one[-2:], same[-2:]) == (same.partition(":")[0], ":0", ":1")
    assert one.partition(":")[0] != other.partition(":")[0]


def test_a_session_about_nothing_is_a_task_of_its_own(say: Say, export: Any) -> None:
    say("hi", rollout="", id="s~1:0")
    say("hi", rollout="", id="s~2:0")
    assert names(export()) == ["s~1-0:0", "s~2-0:0"]


def test_an_attempt_that_was_tried_again_is_its_last_try(say: Say, export: Any) -> None:
    for retry, reward in ((0, 0.1), (1, 0.2), (0, 0.3)):
        say("hi", rollout="a:0", retry=retry, reward=reward)
    assert [each.episode.trajectories[0].reward for each in export()] == [0.2, 0.3]
    assert ": tried again" in export.said


def test_what_validates_is_not_trained_on(say: Say, export: Any) -> None:
    say("hi", rollout="a:0")
    say("hi", rollout="b:0", label="val")
    assert names(export()) == ["a:0"]
    assert ": of validation" in export.said


def test_what_has_not_ended_is_left_out_unless_it_is_asked_for(say: Say, export: Any) -> None:
    say("hi", rollout="a:0")
    say("hi", rollout="a:1", close=False)
    say(rollout="a:2")
    assert names(export()) == ["a:0"]
    assert ": open" in export.said
    assert ": without a call" in export.said


def test_sessions_that_are_open_can_be_exported(say: Say, export: Any) -> None:
    say("hi", rollout="a:1", close=False)
    assert names(export("--with-open")) == ["a:0"]


def test_a_session_without_a_reward_says_so(say: Say, export: Any) -> None:
    say("hi", reward=None)
    (played,) = export()
    assert played.episode.trajectories[0].reward is None
    assert "1 attempt at 1 task" in export.said
    assert "1 without a reward" in export.said


def test_metadata_of_requests_splits_trajectories(world: World, export: Any) -> None:
    session = world.open(name_key="who", group_key="thread")
    with openai.OpenAI(base_url=session.openai_url(), api_key=session.key) as client:
        for metadata in ({"who": "solver", "thread": "1"}, {"who": "solver", "thread": "2"}, {"who": "judge"}):
            said: Any = [{"role": "user", "content": "hi"}]
            client.chat.completions.create(model="m", messages=said, metadata=metadata)
    trace = world.close(session)
    (played,) = export()
    assert [(call.name, call.group) for call in trace.calls] == [("solver", "1"), ("solver", "2"), ("judge", None)]
    uids = [each.uid.removeprefix(f"{played.episode.id}/") for each in played.episode.trajectories]
    assert uids == ["solver/1", "solver/2", "judge"]


def test_the_files_say_what_sampled(say: Say, export: Any, world: World, tmp_path: Path) -> None:
    attached = world.gateway._attached
    assert attached is not None
    world.gateway.attach(
        AttachedPolicy(policy=attached.policy, renderer=attached.renderer, model="tiny", tokenizer="abc")
    )
    say("hi", temperature=0.5)
    export()
    sampler = sampler_of(tmp_path / "episodes of it" / "episodes" / "step_000000.parquet")
    assert (sampler.tokenizer, sampler.temperature) == ("abc", 0.5)


def test_sessions_of_several_samplers_are_refused(say: Say, export: Any) -> None:
    say("hi", temperature=0.5, run="one")
    say("hi", temperature=1.0, run="other")
    with expect_error(ConfigError, "mixed-sessions", "--session ID"):
        export()
    assert names(export("--run", "one")) == ["task:0"]


def test_attempts_of_several_policies_are_in_files_of_their_own(say: Say, export: Any, world: World) -> None:
    for version in (1, 0, 1):
        world.policy.weight_version = version
        say("hi", rollout="a:0")
    assert [(each.step, each.episode.id[-2:]) for each in export()] == [(0, ":0"), (1, ":0"), (1, ":1")]
    assert "3 attempts at 1 task " in export.said


def test_attempts_of_a_task_batch_are_together_across_versions(say: Say, export: Any, world: World) -> None:
    """Asynchronous training publishes weights between the first calls of a group's attempts."""
    for batch, version in ((0, 1), (0, 2), (1, 2), (1, 2)):
        world.policy.weight_version = version
        say("hi", rollout="a:0", task_batch=batch)
    assert [(each.step, each.episode.id[-2:]) for each in export()] == [(0, ":0"), (0, ":1"), (1, ":0"), (1, ":1")]


def test_export_of_several_calls_reads_the_first_for_its_version(say: Say, export: Any, world: World) -> None:
    said: list[int] = []
    sample = world.policy.sample

    async def newer(*asked: Any) -> Any:
        world.policy.weight_version += 1
        said.append(world.policy.weight_version)
        return await sample(*asked)

    world.policy.sample = newer  # type: ignore[method-assign]
    session = say("hi", "and")
    world.gateway.flush()
    assert world.store.first_version(session.id) == said[0] < said[1]


def test_sessions_are_selected_by_id_and_time(say: Say, export: Any, tmp_path: Path) -> None:
    for rollout in ("a:0", "b:0", "c:0"):
        say("hi", rollout=rollout, id=rollout)
    assert names(export("--session", "c:0", "--session", "a:0")) == ["a:0", "c:0"]
    shutil.rmtree(tmp_path / "episodes of it")
    assert names(export("--session", "b:0", "--since", "2020-01-01", "--before", "2999-01-01 00:00:00+00:00")) == [
        "b:0"
    ]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--session", "nobody"), "unknown-session"),
        (("--since", "2999-01-01"), "no-sessions"),
        (("--before", "2020-01-01"), "no-sessions"),
    ],
)
def test_a_selection_without_sessions_is_refused(say: Say, export: Any, words: tuple[str, ...], code: str) -> None:
    say("hi")
    with expect_error(ConfigError, code):
        export(*words)


def test_a_folder_that_holds_files_is_refused(say: Say, export: Any) -> None:
    say("hi")
    export()
    with expect_error(ConfigError, "directory-in-use"):
        export()


def test_a_store_without_sessions_is_refused(export: Any) -> None:
    with expect_error(ConfigError, "no-sessions"):
        export()


def test_many_tasks_are_several_files(say: Say, export: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_gateway.exporting.TASKS_OF_A_FILE", 2)
    for rollout in ("a:0", "b:0", "c:0", "a:1"):
        say("hi", rollout=rollout)
    assert [each.step for each in export()] == [0, 0, 0, 1]


def test_a_session_of_an_older_store_has_no_sampler() -> None:
    from rllm_gateway.exporting import _sampler_of

    row = SessionRow(id="s", run="r", rollout="a:0", retry=0, metadata={"task": {}}, key_hash="", opened=0.0)
    assert _sampler_of([row]).tokenizer is None
