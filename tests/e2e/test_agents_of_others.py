"""Agents in user code with unmodified clients: their behavior in a run, and the run's rollouts."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_printed, check_values, expect_error
from recorded_runs import FILES, RUNS, RecordedRuns

from rllm_core.data.types import Episode, TerminationReason
from rllm_core.errors import ConfigError, RllmError
from rllm_core.notices import forget_warnings
from rllm_gateway.serving.opening import RUN_PORT

pytestmark = pytest.mark.usefixtures("without_validation")
Rllm = Callable[..., subprocess.CompletedProcess[str]]

GUESS = """
from openai import OpenAI
from rllm.builtin.environments.number_games import Guess
from rllm.builtin.environments.number_games import GuessParams

client = OpenAI()

def solve(task):
    game = Guess(GuessParams(prompt="guess"))
    messages = [{"role": "user", "content": game.reset(task)}]
    total = 0.0
    while True:
        response = client.chat.completions.create(model="any", messages=messages)
        words = response.choices[0].message.content
        outcome = game.step(words)
        total += outcome.reward
        if outcome.done:
            return {"reward": total, "correct": outcome.correct, "metrics": outcome.metrics}
        messages += [{"role": "assistant", "content": words}, {"role": "user", "content": outcome.observation}]
"""
PREAMBLE = """
import json, os, sys, time, urllib.request

def chat(messages, **options):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": messages, **options}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def ask(words="hi", **options):
    return chat([{"role": "user", "content": words}], **options)
"""
"""Start of an agent's file, with a small client. The import of a real client takes more time than a session."""
SHORT = {"data.max_response_length": 4}
WRITES_WHAT_IT_SEES = """
import dataclasses, json
def score(rollout):
    seen = json.dumps([list(rollout.messages), dataclasses.asdict(rollout.response), rollout.response_tokens])
    with open("seen.jsonl", "a") as file:
        file.write(seen + "\\n")
    return 0.0
"""
AGENT = {"rllm.workflow.name": "agent", "rllm.workflow.workflow_args.agent": "agent.py:solve", **SHORT}
REPORTS = "rllm.workflow.workflow_args.reports_reward"
SEND_REWARD = "from rllm_gateway.client import reward; reward(0.75); print(json.dumps({'answer': ''}))"
GUESSING = {"rllm.workflow.name": "agent", "rllm.workflow.workflow_args.agent": "guess_agent.py:solve"}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Keys of a run that attaches to one gateway for all tests: three CPU seconds less for each."""
    directory = tmp_path_factory.mktemp("gateway")
    program = [sys.executable, "-m", "rllm", "gateway", "serve", "--store", "calls.db", "--token-file", "token"]
    with subprocess.Popen(
        [*program, "--port", "0", "--run-port", "0"], cwd=directory, stdout=subprocess.PIPE, text=True
    ) as gateway:
        try:
            assert gateway.stdout is not None
            said = gateway.stdout.readline()
            (run_port,) = re.findall(r"runs: port (\d+)", said)
            yield {
                "rllm.sdk.proxy.mode": "external",
                "rllm.sdk.proxy.port": int(run_port) - RUN_PORT,
                "rllm.sdk.proxy.admin_token": (directory / "token").read_text().strip(),
            }
        finally:
            gateway.terminate()


@pytest.fixture
def trained(train: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run one step on `sum` with an agent, whose code follows `PREAMBLE`. The run has its own gateway."""

    def run(code: str, **settings: Any) -> Any:
        (tmp_path / "agent.py").write_text(PREAMBLE + textwrap.dedent(code))
        return train("sum", {**AGENT, "rllm.sdk.store.path": str(tmp_path / "traces.db"), **settings})

    return run


@pytest.fixture
def train_agent(train: Any, serving: dict[str, Any], tmp_path: Path) -> Callable[..., Any]:
    """Run the same with the gateway of all tests."""

    def run(code: str, **settings: Any) -> Any:
        (tmp_path / "agent.py").write_text(PREAMBLE + textwrap.dedent(code))
        return train("sum", {**AGENT, **serving, "data.train_batch_size": 1, **settings})

    return run


def tokens_of(episodes: list[Episode]) -> list[Any]:
    return [
        (
            episode.id,
            episode.is_correct,
            [
                (each.name, each.uid, each.reward, each.tokens.ids.tolist(), each.tokens.sampled.tolist())
                for each in episode.trajectories
            ],
        )
        for episode in episodes
    ]


@pytest.mark.smoke
def test_game_through_gateway_has_equal_tokens_and_curve(train: Any, tmp_path: Path) -> None:
    settings = {"data.max_response_length": 1, "rllm.trainer.total_batches": 2, "rllm.rollout.n": 4}
    built_in = train("guess", {**settings, "rllm.workflow.name": "multi_turn_workflow"}).steps
    (tmp_path / "guess_agent.py").write_text(GUESS)
    through_gateway = train("guess", {**settings, **GUESSING, "rllm.sdk.store.path": "traces.db"}).steps
    assert len(built_in[0].generated) == 8
    assert tokens_of(through_gateway[0].generated) == tokens_of(built_in[0].generated)
    for ours, theirs in zip(built_in[0].generated, through_gateway[0].generated, strict=True):
        for one, other in zip(ours.trajectories, theirs.trajectories, strict=True):
            np.testing.assert_allclose(one.tokens.logprobs, other.tokens.logprobs, atol=1e-5)
    curves = [
        [(step.metrics["reward/agent/mean"], step.metrics["actor/grad_norm"]) for step in steps]
        for steps in (built_in, through_gateway)
    ]
    assert len(curves[0]) == 2
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-3, atol=1e-6)


POSTS = """
from rllm_gateway import client
async def solve(task, session):
    ask()
    session.reward(0.5)
"""
ROLES = """
from rllm_gateway.client import get_chat_client, session
def solve(task):
    for role in ("solver", "judge"):
        with session(role):
            get_chat_client().chat.completions.create(model="m", messages=[{"role": "user", "content": role}])
    return {"reward": {"solver": 1.0, "judge": 0.0}}
"""


@pytest.mark.parametrize(
    ("code", "rewards"),
    [
        ("def solve(task):\n    ask()\n    return 0.25\n", [("agent", 0.25)]),
        (POSTS, [("agent", 0.5)]),
        pytest.param(ROLES, [("solver", 1.0), ("judge", 0.0)], marks=pytest.mark.long),
    ],
    ids=["returned", "posted", "of roles"],
)
def test_reward_is_what_the_agent_reports(train_agent: Any, code: str, rewards: list[tuple[str, float]]) -> None:
    for episode in train_agent(code).episodes:
        assert [(each.name, each.reward) for each in episode.trajectories] == rewards
        assert episode.termination_reason is TerminationReason.ENV_DONE
        assert episode.metrics["gateway/trained_tokens"] > 0


def test_reward_of_the_run_reads_the_agents_answer(
    train_agent: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rewards.py").write_text("def score(rollout):\n    return float(rollout.response.content == 'fish')\n")
    code = """
        def solve(task):
            ask(temperature=0.5)
            return {"answer": "fish", "reward": 50, "correct": False}
    """
    forget_warnings()
    episodes = train_agent(code, **{"rllm.reward": ["python:rewards.py:score"]}).episodes
    assert {(episode.trajectories[0].reward, episode.is_correct) for episode in episodes} == {(1.0, True)}
    assert {episode.metrics["gateway/rejected_rewards"] for episode in episodes} == {1.0}
    lines = capfd.readouterr().err.splitlines()
    assert sum("reward was rejected" in line and "rllm.reward" in line for line in lines) == 1
    assert sum("set temperature" in line for line in lines) == 1


@pytest.mark.long
def test_reward_receives_the_same_as_in_builtin_workflow(train: Any, serving: dict[str, Any], tmp_path: Path) -> None:
    settings = {"data.max_response_length": 1, "data.train_batch_size": 1, "rllm.rollout.n": 2}
    settings |= {"rllm.reward": ["python:rewards.py:score"]}
    (tmp_path / "rewards.py").write_text(WRITES_WHAT_IT_SEES)
    (tmp_path / "guess_agent.py").write_text(GUESS)
    seen = []
    for workflow in ({"rllm.workflow.name": "multi_turn_workflow"}, {**GUESSING, **serving}):
        train("guess", {**settings, **workflow})
        file = tmp_path / "seen.jsonl"
        seen.append(sorted(file.read_text().splitlines()))
        file.unlink()
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]


def test_agent_without_reward_fails_the_run_with_reason(train_agent: Any) -> None:
    with expect_error(RllmError, "missing-reward", "reward"):
        train_agent("def solve(task):\n    ask()\n")


def test_failed_agent_is_failed_rollout_with_last_lines(train_agent: Any) -> None:
    code = """
        def solve(task):
            ask()
            raise LookupError("nothing there")
    """
    settings = {"rllm.workflow.raise_on_error": False, "rllm.workflow.retry_limit": 1}
    trained = train_agent(code, **settings)
    episodes = trained.episodes
    assert {episode.termination_reason for episode in episodes} == {TerminationReason.ERROR}
    assert "LookupError: nothing there" in episodes[0].error


@pytest.mark.long
def test_hanging_agent_is_killed_and_keeps_sampled_tokens(train_agent: Any, tmp_path: Path) -> None:
    code = """
        def solve(task):
            ask()
            while True:
                time.sleep(1)
    """
    settings = {
        "rllm.workflow.workflow_args.timeout": 5,
        "rllm.compact_filtering.mask_timeout": True,
    }
    episodes = train_agent(code, **settings).episodes
    assert {episode.termination_reason for episode in episodes} == {TerminationReason.TIMEOUT}
    assert {len(episode.trajectories[0].steps) for episode in episodes} == {1}


def test_an_agent_that_never_asks_is_warned_of(train_agent: Any, capfd: pytest.CaptureFixture[str]) -> None:
    train_agent("def solve(task): return 1.0", **{"rllm.algorithm.on_missing_reward": "drop"})
    check_values(capfd.readouterr().err, "warning: ", "model call", "OPENAI_BASE_URL")


@pytest.mark.parametrize(("choices", "limit"), [(1, 2), (2, 3)], ids=["calls", "calls for all choices"])
def test_agent_without_calls_left_keeps_its_turns(train_agent: Any, choices: int, limit: int) -> None:
    code = f"""
        def solve(task):
            for number in range(9):
                ask(str(number), n={choices})
            return 1.0
    """
    settings = {"rllm.agent.max_steps": limit, "rllm.compact_filtering.mask_max_turns_exceeded": True}
    episodes = train_agent(code, **settings).episodes
    assert {episode.termination_reason for episode in episodes} == {TerminationReason.MAX_TURNS_EXCEEDED}
    assert {len(episode.trajectories[0].steps) for episode in episodes} == {2}


@pytest.mark.parametrize("words", [500, 5000], ids=["rendered", "too long to be rendered"])
def test_a_prompt_without_room_ends_the_rollout(train_agent: Any, words: int) -> None:
    code = f"""
        def solve(task):
            ask("one")
            ask("word " * {words})
    """
    episodes = train_agent(code, **{"data.max_prompt_length": 40}).episodes
    assert {each.termination_reason for each in episodes} == {TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED}


@pytest.mark.parametrize(
    ("report", "settings", "reward"),
    [
        ("print(json.dumps({'reward': 0.75}))", {REPORTS: True}, 0.75),
        (SEND_REWARD, {REPORTS: True}, 0.75),
        # A command of the model could have printed it.
        ("print(json.dumps({'reward': 0.75}))", {"rllm.algorithm.on_missing_reward": "zero"}, 0.0),
    ],
    ids=["printed", "sent", "not declared"],
)
def test_a_program_is_an_agent(
    train: Any, serving: dict[str, Any], tmp_path: Path, report: str, settings: dict[str, Any], reward: float
) -> None:
    code = f"""
task = json.load(sys.stdin)
assert task == json.loads(os.environ["RLLM_TASK"])
ask()
{report}
"""
    (tmp_path / "program.py").write_text(PREAMBLE + code)
    command = {"rllm.workflow.workflow_args.command": [sys.executable, "program.py"], "data.train_batch_size": 1}
    episodes = train("sum", {"rllm.workflow.name": "agent", **command, **serving, **SHORT, **settings}).episodes
    assert {episode.trajectories[0].reward for episode in episodes} == {reward}


def test_metadata_key_names_and_splits_trajectories(train_agent: Any) -> None:
    code = """
        def solve(task):
            ask("one", metadata={"role": "planner", "part": "x"})
            ask("two", metadata={"part": "y"})
            return 1.0
    """
    keys = {"rllm.sdk.processing.groupby_key": "part", "rllm.sdk.processing.traj_name_key": "role"}
    for episode in train_agent(code, **keys).episodes:
        assert [each.uid.removeprefix(episode.id) for each in episode.trajectories] == ["/planner/x", "/agent/y"]


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"rllm.workflow.workflow_args.agent": "nowhere.py:solve"}, "file-not-found", "nowhere.py"),
        ({"rllm.workflow.workflow_args.agent": None}, "no-agent", "agent"),
        ({"rllm.workflow.workflow_args.command": ["echo"]}, "no-agent", "agent"),
        ({REPORTS: True, "rllm.reward": ["exact"]}, "unused-key", "rllm.reward"),
        ({"rllm.sdk.proxy.mode": "external"}, "unused-key", "rllm.sdk.store.path"),
        ({"rllm.sdk.proxy.admin_token": "secret"}, "unused-key", "rllm.sdk.proxy.admin_token"),
    ],
)
def test_what_cannot_work_is_refused(trained: Any, settings: dict[str, Any], code: str, value: str) -> None:
    with expect_error(ConfigError, code, value):
        trained("def solve(task): pass\n", **settings)


def test_occupied_port_fails_the_run_with_its_key(trained: Any) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        expect_error(ConfigError, "port-unavailable", "rllm.sdk.proxy.port"),
    ):
        trained("def solve(task): return 1.0\n", **{"rllm.sdk.proxy.port": server.getsockname()[1]})


def test_a_dry_run_refuses_what_the_gateway_would(tmp_path: Path, rllm_here: Rllm) -> None:
    (tmp_path / "agent.py").write_text("def solve(task): return 1.0\n")
    (tmp_path / "file").touch()
    words = ("train", "sum", "--agent", "agent.py:solve", "--dry-run")
    refused = rllm_here(*words, "rllm.sdk.store.path=file/traces.db")
    assert refused.returncode == 2
    check_printed(refused.stderr, "directory-not-found", "rllm.sdk.store.path", "file/traces.db")
    assert rllm_here(*words, "rllm.sdk.store.path=new/traces.db").returncode == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_resumed_run_stops_if_agent_file_changed(tmp_path: Path, rllm_here: Rllm, recorded_runs: RecordedRuns) -> None:
    recorded_runs.copy("agent", tmp_path / "runs/rllm-training/default")
    for name in ("agent.py", "questions.jsonl"):
        (tmp_path / name).write_text(FILES[name].replace("return 1.0", "return 2.0"))
    words = [word.replace("total_batches=2", "total_batches=3") for word in RUNS["agent"]]
    refused = rllm_here(*words, "--resume")
    assert refused.returncode != 0
    check_printed(refused.stderr, "source-changed", "workflow agent: agent.py", "return 2.0")
    accepted = rllm_here(*words, "--resume", "rllm.trainer.on_changed_source=warn")
    assert accepted.returncode == 0, accepted.stderr


@pytest.mark.long
def test_killed_run_leaves_no_gateway_and_no_agent(start_forked_rllm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        PREAMBLE + "def solve(task):\n    ask()\n    open(f'{os.getpid()}.pid', 'w').close()\n    time.sleep(1000)\n"
    )
    words = ["train", "sum", "--agent", "agent.py:solve", "rllm.rollout.n=2", "rllm.sdk.store.path=traces.db"]
    words += ["rllm.trainer.val_before_train=false", "data.max_response_length=4", "data.train_batch_size=2"]
    run = start_forked_rllm(*words)
    try:
        while len(list(tmp_path.glob("*.pid"))) < 4:
            assert run.poll() is None
            time.sleep(0.1)
        started = descendants_of(run.pid)
        assert len(started) >= 6
    finally:
        run.kill()
        run.communicate()
    while any(map(is_alive, started)):
        time.sleep(0.1)


def descendants_of(pid: int) -> list[int]:
    """Return all descendants of a process."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    own = [int(child) for file in children for child in file.read_text().split()]
    return [*own, *(each for child in own for each in descendants_of(child))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def programs_with(words: str) -> list[int]:
    """Return the child processes of this process with these arguments, at least one."""
    children = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    found = [int(pid) for pid in children if words in Path(f"/proc/{pid}/cmdline").read_text()]
    assert found
    return found


@pytest.mark.long
def test_separate_gateway_serves_one_run_after_another(train_agent: Any, serving: dict[str, Any]) -> None:
    code = "def solve(task):\n    ask()\n    return 1.0\n"
    for _ in range(2):
        train_agent(code)
    for gateway in programs_with("gateway\0serve"):
        assert "torch" not in Path(f"/proc/{gateway}/maps").read_text(), "its memory has the libraries of torch"
    with expect_error(RllmError, "gateway-rejected-run", serving["rllm.sdk.proxy.port"] + RUN_PORT):
        train_agent(code, **{"rllm.sdk.proxy.admin_token": "guessed"})


@pytest.mark.long
def test_calls_are_replaced_with_the_run_directory(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rllm_gateway.calls import CallReader
    from rllm_gateway.serving.store_paths import named_store

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "agent.py").write_text(PREAMBLE + "def solve(task):\n    ask()\n    return 1.0\n")
    for _ in range(2):
        run = train("sum", {**AGENT, "data.train_batch_size": 1})
        store = named_store(str(run.directory), None)
        assert store == run.directory / "gateway/traces.db"
        with CallReader.open(store) as reader:
            responses = [each.calls for each in reader.sessions(run="rllm-training/default") if each.end is not None]
        assert responses == [1] * 2
    assert not (tmp_path / "home/.rllm/traces.db").exists()
