"""`rllm eval` as users run it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values
from written_distribution import write_distribution

from rllm.config import leaves
from rllm.config.compose import compose
from rllm.config.layers import layer_from_dotted
from rllm.evaluation import engines
from rllm.evaluation.plans import EvaluationPlan
from rllm.planning import RunPlan
from rllm.planning.planner import make_plan
from rllm_core.plugins.registry import Registry

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
    """Install a package with an environment that waits for a file."""
    write_distribution(tmp_path, "waiting", WAITING)
    environ["PYTHONPATH"] = str(tmp_path)


def until_it_waits(directory: Path) -> None:
    while not (directory / "waits").exists():
        time.sleep(0.02)


def test_several_environments_have_a_row_each(rllm_here: Any) -> None:
    done = rllm_here("eval", "guess", "sum", *TINY)
    assert done.returncode == 0, done.stderr
    heading, guess, added = done.stdout.splitlines()[:3]
    assert heading.split() == ["environment", "tasks", "rollouts", "pass@1", "pass@2", "reward"]
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


def test_environments_with_other_sampling_have_their_own_engines() -> None:
    def key(**settings: Any) -> str:
        layers = [layer_from_dotted({"rllm.env.name": "guess", **settings}, "the test")]
        return engines.engine_key(make_plan(compose(REGISTRY, layers), REGISTRY))

    assert key() == key(**{"rllm.rollout.n_val": 3, "data.val_batch_size": 4})
    others = [{"data.max_prompt_length": 7}, {"training.max_length": 99}, {"rllm.trainer.seed": 1}]
    assert len({key(), *(key(**other) for other in others)}) == 4


def test_environment_is_evaluated_independently_of_others(rllm_here: Any) -> None:
    both = json.loads(rllm_here("eval", "guess", "sum", "--json", *TINY).stdout)["environments"]
    separate = json.loads(rllm_here("eval", "sum", "--json", *TINY).stdout)["environments"]
    assert both[1:] == separate


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (("guess", "guess"), "duplicate-choice", "'guess'"),
        (("question", "--data", "val.jsonl", "--reward", "exact"), "missing-column", "'answer'"),
        (("gues",), "unknown-plugin", "'gues'"),
        (("guess", "rllm.rollout.n=4"), "unused-key", "`rllm.rollout.n` (from command line)"),
        (("guess", "training.learning_rate=1"), "unused-key", "`training.learning_rate` (from command line)"),
        (("guess", "--model-name", "x"), "usage-error", "--model-name"),
    ],
)
def test_impossible_evaluation_is_reported_in_one_paragraph(
    rllm_here: Any, tmp_path: Path, words: tuple[str, ...], code: str, value: str
) -> None:
    (tmp_path / "val.jsonl").write_text('{"question": "1+1"}\n')
    done = rllm_here("eval", *words)
    assert done.returncode == 2
    check_printed(done.stderr, code, value)


@pytest.mark.long
def test_killed_saved_evaluation_continues_to_same_metrics(
    start_forked_rllm: Any, forked_rllm: Any, waiting: None, tmp_path: Path
) -> None:
    words = ("eval", "waiting", "--json", "--model", "tiny", "rllm.workflow.n_parallel_tasks=1")
    process = start_forked_rllm(*words, "--save", "kept")
    until_it_waits(tmp_path)
    process.kill()
    (tmp_path / "go").touch()
    resumed = forked_rllm(*words, "--save", "kept")
    assert "kept has 3 rollouts; 1 are missing" in resumed.stderr
    assert resumed.stdout == forked_rllm(*words).stdout


def test_more_rollouts_are_added_to_a_saved_evaluation(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "kept", *TINY)
    more = rllm_here("eval", "guess", "--save", "kept", *TINY, "rllm.rollout.n_val=3", "--json")
    assert "kept has 32 rollouts; 16 are missing" in more.stderr
    assert more.stdout == rllm_here("eval", "guess", *TINY, "rllm.rollout.n_val=3", "--json").stdout


def test_another_evaluation_is_not_mixed_in(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "kept", *TINY)
    done = rllm_here("eval", "guess", "--save", "kept", *TINY, "--seed", "1")
    assert done.returncode == 2
    check_printed(done.stderr, "other-evaluation", "kept", "rllm.trainer.seed of guess was 0", "1")


@pytest.mark.long
def test_another_training_at_the_same_path_is_another_model(rllm_here: Any) -> None:
    train = ("train", "guess", "rllm.trainer.total_batches=1", "data.train_batch_size=8", "rllm.trainer.test_freq=-1")
    latest = "runs/rllm-training/default/checkpoints/latest"
    arguments = ("eval", "guess", "--model", latest, "rllm.rollout.n_val=1", "rllm.trainer.seed=7")
    assert rllm_here(*train, "--seed", "1").returncode == 0
    assert rllm_here(*arguments, "--save", "one").returncode == 0
    assert rllm_here(*train, "--seed", "2", "--overwrite").returncode == 0
    refused = rllm_here(*arguments, "--save", "one")
    assert refused.returncode == 2
    check_printed(refused.stderr, "other-evaluation", "one", "step_000001 (weights ")
    assert rllm_here(*arguments, "--save", "other").returncode == 0
    first, second, *_ = rllm_here("eval", "compare", "one", "other").stdout.splitlines()
    assert first.startswith("first: ") and second.startswith("second: ")
    assert first.rpartition("weights ")[2] != second.rpartition("weights ")[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "goes_on"),
    [
        (("training", "learning_rate"), True),
        (("critic", "clip"), True),
        (("rllm", "trainer", "save_freq"), True),
        (("rllm", "algorithm", "eps_clip"), True),
        (("training", "max_length"), False),
        (("data", "max_response_length"), False),
        (("sampling", "val", "temperature"), False),
    ],
)
def test_only_keys_of_evaluations_make_a_different_one(
    rllm_here: Any, tmp_path: Path, path: tuple[str, ...], goes_on: bool
) -> None:
    rllm_here("eval", "guess", "--save", "kept", *TINY)
    file = tmp_path / "kept" / "eval.json"
    saved = json.loads(file.read_text())
    section = saved["environments"]["guess"]["config"]
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = 3.5  # As if an earlier version had a different default.
    file.write_text(json.dumps(saved))
    done = rllm_here("eval", "guess", "--save", "kept", *TINY)
    assert done.returncode == (0 if goes_on else 2)
    assert (f"{'.'.join(path)} of guess was 3.5" in done.stderr) is not goes_on


@pytest.mark.parametrize("backend", ["local", "tinker", "verl"])
def test_backend_specifies_its_keys_for_training_only(backend: str) -> None:
    settings = {"rllm.env.name": "guess", "rllm.backend": backend}
    settings |= {"tinker_base_url": "local"} if backend == "tinker" else {}
    evaluation = EvaluationPlan(make_plan(compose(REGISTRY, [layer_from_dotted(settings, "the test")]), REGISTRY), None)
    of_evaluation = {"rllm.trainer.seed", "rllm.rollout.n_val", evaluation.plan.backend.plugin.model_key}
    of_evaluation |= {"actor_rollout_ref.rollout.max_model_len"} if backend == "verl" else {"training.max_length"}
    of_training = {"rllm.rollout.n", "rllm.trainer.save_freq", evaluation.plan.backend.plugin.learning_rate_key}
    of_training |= {"training.num_minibatches", *(each.native for each in evaluation.plan.backend.plugin.shared_keys)}
    known = {".".join(path) for path, _ in leaves(evaluation.plan.composed.tree)}
    assert {key for key in of_evaluation | of_training if evaluation.acts(key)} == of_evaluation
    assert of_evaluation | {evaluation.plan.backend.plugin.learning_rate_key, "training.num_minibatches"} <= known


def test_directory_of_other_files_is_unchanged(rllm_here: Any, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.tex").touch()
    done = rllm_here("eval", "guess", "--save", "kept", *TINY)
    check_printed(done.stderr, "directory-in-use", "kept", "--save")


@pytest.mark.long
def test_two_evaluations_are_compared_task_by_task(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "one", *TINY)
    rllm_here("eval", "guess", "--save", "other", *TINY, "--seed", "1")
    assert rllm_here("eval", "compare", "one", "other").stdout.splitlines()[3].split()[:3] == ["guess", "16", "pass@1"]
    (there,) = json.loads(rllm_here("eval", "compare", "one", "other", "--json").stdout)["environments"]
    (back,) = json.loads(rllm_here("eval", "compare", "other", "one", "--json").stdout)["environments"]
    assert there["passed"]["difference"]["value"] == -back["passed"]["difference"]["value"]
    assert there["passed"]["p"] == back["passed"]["p"]
    same = json.loads(rllm_here("eval", "compare", "one", "one", "--json").stdout)["environments"][0]
    assert (same["passed"]["difference"]["value"], same["passed"]["p"], same["reward"]["p"]) == (0.0, 1.0, 1.0)


@pytest.mark.long
def test_environment_in_only_one_directory_is_reported(rllm_here: Any) -> None:
    rllm_here("eval", "guess", "--save", "one", *TINY)
    rllm_here("eval", "guess", "sum", "--save", "both", *TINY)
    done = rllm_here("eval", "compare", "one", "both")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    check_values(line, "sum (only in both)")


def test_different_tasks_are_not_compared(rllm_here: Any) -> None:
    for largest, directory in ((1, "few"), (2, "many")):
        rllm_here("eval", "sum", "--save", directory, *TINY, f"rllm.env.env_args.largest={largest}")
    rllm_here("eval", "guess", "--save", "guesses", *TINY)
    done = rllm_here("eval", "compare", "few", "many")
    assert done.returncode == 2
    check_printed(done.stderr, "different-evaluations", "few", "many", "sum")
    others = rllm_here("eval", "compare", "few", "guesses").stderr
    check_printed(others, "different-evaluations", "few", "sum", "guesses", "guess")
    check_printed(rllm_here("eval", "compare", "empty", "few").stderr, "no-evaluation", "empty")


@pytest.mark.long
def test_ctrl_c_shows_finished_rollouts(start_forked_rllm: Any, waiting: None, tmp_path: Path) -> None:
    process = start_forked_rllm("eval", "waiting", "--json", "--model", "tiny", "rllm.workflow.n_parallel_tasks=1")
    until_it_waits(tmp_path)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    data = json.loads(output)
    assert data["missing_rollouts"] == 1
    (metrics,) = data["environments"]
    assert (metrics["tasks"], metrics["rollouts"], metrics["reward"]["value"]) == (3, 3, 1.0)
    assert errors.splitlines()[-1] == "stopped: 1 rollouts are missing"
