"""`rllm eval` as its users run it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rllm_core.config.compose import compose
from rllm_core.config.layers import layer_from_dotted
from rllm_core.planning import RunPlan
from rllm_core.planning.planner import make_plan
from rllm_core.plugins.registry import Registry
from rllm_evals import engines

REGISTRY = Registry.load()
TINY = ("--model", "tiny", "rllm.rollout.n_val=2")
WAITING = """
import time
from pathlib import Path
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome
from rllm_core.data.types import Task
from rllm_core.plugins import hookimpl

class Waiting(Environment):
    \"\"\"The last of four tasks never answers.\"\"\"
    def __init__(self, params): pass
    @classmethod
    def tasks(cls, split, params):
        return [Task(id=f"t{number}", data={"number": number}, data_source="waiting") for number in range(4)]
    def reset(self, task):
        self.number = task["number"]
        return "guess"
    def step(self, action):
        if self.number == 3:
            Path("waits").touch()
            while not Path("go").exists():
                time.sleep(0.01)
        return Outcome(reward=float(self.number), done=True, correct=self.number > 0)

@hookimpl
def rllm_environments():
    yield EnvironmentPlugin(name="waiting", summary="Waits.", load=lambda: Waiting)
"""


@pytest.fixture
def waiting(tmp_path: Path, environ: dict[str, str]) -> None:
    """A package with an environment that waits for a file."""
    (tmp_path / "waiting.py").write_text(WAITING)
    info = tmp_path / "waiting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: waiting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rllm.plugins]\nwaiting = waiting\n")
    environ["PYTHONPATH"] = str(tmp_path)


def until_it_waits(folder: Path) -> None:
    while not (folder / "waits").exists():
        time.sleep(0.02)


def test_several_environments_have_a_row_each(rllm_here: Any) -> None:
    done = rllm_here("eval", "guess", "sum", *TINY)
    assert done.returncode == 0, done.stderr
    heading, guess, added = done.stdout.splitlines()[:3]
    assert heading.split() == ["environment", "tasks", "attempts", "pass@1", "pass@2", "reward"]
    assert guess.split()[:3] == ["guess", "16", "32"]
    assert added.split()[:3] == ["sum", "100", "200"]


def test_a_model_is_loaded_once_for_environments_that_sample_alike(
    rllm_here: Any, monkeypatch: pytest.MonkeyPatch, thinking_model: Path
) -> None:
    opened, opens = [], engines.open_engine

    def counting(plan: RunPlan) -> Any:
        opened.append(plan.config.rllm.env.name)
        return opens(plan)

    monkeypatch.setattr(engines, "open_engine", counting)
    alike = ("--model", str(thinking_model), "rllm.rollout.n_val=1", "data.max_response_length=1")
    assert rllm_here("eval", "guess", "sum", *alike).returncode == 0
    assert opened == ["guess"]


def test_environments_that_sample_otherwise_have_engines_of_their_own() -> None:
    def key(**settings: Any) -> str:
        layers = [layer_from_dotted({"rllm.env.name": "guess", **settings}, "the test")]
        return engines.engine_key(make_plan(compose(REGISTRY, layers), REGISTRY))

    assert key() == key(**{"rllm.rollout.n_val": 3, "data.val_batch_size": 4})
    others = [{"data.max_prompt_length": 7}, {"training.max_length": 99}, {"rllm.trainer.seed": 1}]
    assert len({key(), *(key(**other) for other in others)}) == 4


def test_an_environment_is_played_as_if_it_were_alone(rllm_here: Any) -> None:
    both = json.loads(rllm_here("eval", "guess", "sum", "--json", *TINY).stdout)["environments"]
    alone = json.loads(rllm_here("eval", "sum", "--json", *TINY).stdout)["environments"]
    assert both[1:] == alone


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("guess", "guess"), "Environment 'guess' is named 2 times."),
        (("question", "--data", "val.jsonl", "--reward", "exact"), "the task's data has no 'answer'"),
        (("gues",), "no environment named 'gues'"),
        (("guess", "rllm.rollout.n=4"), "`rllm.rollout.n` (from command line) has no effect in `rllm eval`"),
        (("guess", "--model-name", "x"), "--model-name goes with a --model that is an address"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_paragraph(
    rllm_here: Any, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "val.jsonl").write_text('{"question": "1+1"}\n')
    done = rllm_here("eval", *words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


def test_a_saved_evaluation_that_was_killed_goes_on_to_the_same_figures(
    start_forked_rllm: Any, forked_rllm: Any, waiting: None, tmp_path: Path
) -> None:
    words = ("eval", "waiting", "--json", "--model", "tiny", "rllm.workflow.n_parallel_tasks=1")
    process = start_forked_rllm(*words, "--save", "kept")
    until_it_waits(tmp_path)
    process.kill()
    (tmp_path / "go").touch()
    resumed = forked_rllm(*words, "--save", "kept")
    assert "kept has 3 attempts; 1 are missing" in resumed.stderr
    assert resumed.stdout == forked_rllm(*words).stdout


def test_more_attempts_are_added_to_a_saved_evaluation(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "kept", *TINY)
    more = rllm_here("eval", "guess", "--save", "kept", *TINY, "rllm.rollout.n_val=3", "--json")
    assert "kept has 32 attempts; 16 are missing" in more.stderr
    assert more.stdout == rllm_here("eval", "guess", *TINY, "rllm.rollout.n_val=3", "--json").stdout


def test_another_evaluation_is_not_mixed_in(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "kept", *TINY)
    done = rllm_here("eval", "guess", "--save", "kept", *TINY, "--seed", "1")
    assert done.returncode == 2
    assert "kept holds another evaluation: rllm.trainer.seed of guess was 0 and is 1." in done.stderr


def test_a_folder_of_other_files_is_left_alone(rllm_here: Any, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.tex").touch()
    done = rllm_here("eval", "guess", "--save", "kept", *TINY)
    assert "kept holds files, and no evaluation." in done.stderr


def test_two_evaluations_are_compared_task_by_task(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "one", *TINY)
    rllm_here("eval", "guess", "--save", "other", *TINY, "--seed", "1")
    assert rllm_here("eval", "compare", "one", "other").stdout.splitlines()[1].split()[:3] == ["guess", "16", "pass@1"]
    (there,) = json.loads(rllm_here("eval", "compare", "one", "other", "--json").stdout)["environments"]
    (back,) = json.loads(rllm_here("eval", "compare", "other", "one", "--json").stdout)["environments"]
    assert there["passed"]["difference"]["value"] == -back["passed"]["difference"]["value"]
    assert there["passed"]["p"] == back["passed"]["p"]
    same = json.loads(rllm_here("eval", "compare", "one", "one", "--json").stdout)["environments"][0]
    assert (same["passed"]["difference"]["value"], same["passed"]["p"], same["reward"]["p"]) == (0.0, 1.0, 1.0)


def test_an_environment_that_only_one_folder_holds_is_named(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "one", *TINY)
    rllm_here("eval", "guess", "sum", "--save", "both", *TINY)
    done = rllm_here("eval", "compare", "one", "both")
    assert done.returncode == 0
    assert done.stderr == "not compared: sum, which only both holds\n"


def test_different_tasks_are_not_compared(rllm_here: Any) -> None:
    for largest, folder in ((1, "few"), (2, "many")):
        rllm_here("eval", "sum", "--save", folder, *TINY, f"rllm.env.env_args.largest={largest}")
    rllm_here("eval", "guess", "--save", "guesses", *TINY)
    done = rllm_here("eval", "compare", "few", "many")
    assert done.returncode == 2
    assert "different tasks of sum: " in done.stderr and " only in many" in done.stderr
    assert "few holds sum, and guesses holds guess." in rllm_here("eval", "compare", "few", "guesses").stderr
    assert "empty holds no saved evaluation" in rllm_here("eval", "compare", "empty", "few").stderr


def test_ctrl_c_shows_what_was_played(start_forked_rllm: Any, waiting: None, tmp_path: Path) -> None:
    process = start_forked_rllm("eval", "waiting", "--json", "--model", "tiny", "rllm.workflow.n_parallel_tasks=1")
    until_it_waits(tmp_path)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    data = json.loads(output)
    assert data["missing_attempts"] == 1
    (figures,) = data["environments"]
    assert (figures["tasks"], figures["attempts"], figures["reward"]["value"]) == (3, 3, 1.0)
    assert errors.splitlines()[-1] == "stopped: 1 attempts are missing"
