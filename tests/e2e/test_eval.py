"""`rllm eval` as users run it."""

from __future__ import annotations

import io
import json
import shutil
import signal
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from expecting import check_printed, check_values
from recorded_runs import RecordedRuns
from written_distribution import write_distribution

from rllm.cli.main import main
from rllm.config import leaves
from rllm.config.compose import compose
from rllm.config.layers import layer_from_keys
from rllm.evaluation import session
from rllm.evaluation.plans import EvaluationPlan
from rllm.planning import RunPlan
from rllm.planning.planner import make_plan
from rllm_core.data.codec import episode_to_json
from rllm_core.plugins.registry import Registry
from rllm_record.interchange.formats import read_file

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


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Make one evaluation of two environments. Return its directory and its output."""
    directory, output = tmp_path_factory.mktemp("evaluated"), io.StringIO()
    with chdir(directory), redirect_stdout(output), redirect_stderr(io.StringIO()):
        assert main(["eval", "guess", "sum", "--save", "kept", *TINY]) == 0
    return directory / "kept", output.getvalue()


@pytest.fixture
def kept(evaluated: tuple[Path, str], tmp_path: Path) -> Path:
    """Return a copy of the evaluation, in the directory of the commands."""
    return Path(shutil.copytree(evaluated[0], tmp_path / "kept"))


def test_saved_rollouts_are_exported_without_loss(kept: Path, tmp_path: Path) -> None:
    assert main(["record", "export", str(kept), str(tmp_path / "file.jsonl"), "--format", "atif"]) == 0
    saved, exported = read_file(kept), read_file(tmp_path / "file.jsonl")
    assert {each.batch for each in saved} == {0, 1}
    assert [episode_to_json(each.episode) for each in exported] == [episode_to_json(each.episode) for each in saved]


def test_several_environments_have_a_row_each(evaluated: tuple[Path, str]) -> None:
    heading, guess, added = evaluated[1].splitlines()[:3]
    assert heading.split() == ["environment", "tasks", "rollouts", "pass@1", "pass@2", "reward"]
    assert guess.split()[:3] == ["guess", "16", "32"]
    assert added.split()[:3] == ["sum", "100", "200"]


def test_environments_with_equal_sampling_load_a_model_once(
    rllm_here: Any, monkeypatch: pytest.MonkeyPatch, thinking_model: Path
) -> None:
    opened, opens = [], session.open_engine

    def counting(plan: RunPlan) -> Any:
        opened.append(plan.config.rllm.env.name)
        return opens(plan)

    monkeypatch.setattr(session, "open_engine", counting)
    alike = ("--model", str(thinking_model), "rllm.rollout.n_val=1", "data.max_response_length=1")
    assert rllm_here("eval", "guess", "sum", *alike).returncode == 0
    assert opened == ["guess"]


def test_environments_with_other_sampling_have_their_own_engines() -> None:
    def key(**settings: Any) -> str:
        layers = [layer_from_keys({"rllm.env.name": "guess", **settings}, "the test")]
        return session.engine_key(make_plan(compose(REGISTRY, layers), REGISTRY))

    assert key() == key(**{"rllm.rollout.n_val": 3, "data.val_batch_size": 4})
    others = [{"data.max_prompt_length": 7}, {"training.max_length": 99}, {"rllm.trainer.seed": 1}]
    assert len({key(), *(key(**other) for other in others)}) == 4


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


@pytest.mark.smoke
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


def test_more_rollouts_are_added_to_each_environment(rllm_here: Any, kept: Path) -> None:
    more = rllm_here("eval", "guess", "--save", "kept", *TINY, "rllm.rollout.n_val=3", "--json")
    assert "kept has 32 rollouts; 16 are missing" in more.stderr
    assert more.stdout == rllm_here("eval", "guess", *TINY, "rllm.rollout.n_val=3", "--json").stdout


def test_another_evaluation_is_not_mixed_in(rllm_here: Any, kept: Path) -> None:
    done = rllm_here("eval", "guess", "--save", "kept", *TINY, "--seed", "1")
    assert done.returncode == 2
    check_printed(done.stderr, "other-evaluation", "kept", "rllm.trainer.seed of guess was 0", "1")


@pytest.mark.long
def test_new_training_at_same_path_is_new_model(rllm_here: Any, recorded_runs: RecordedRuns) -> None:
    run = Path("runs", "rllm-training", "guess-1")
    arguments = ("eval", "guess", "--model", str(run / "checkpoints/latest"), "rllm.rollout.n_val=1")
    recorded_runs.copy("synchronous", run)
    assert rllm_here(*arguments, "--save", "one").returncode == 0
    shutil.rmtree(run)
    recorded_runs.copy("asynchronous", run)
    refused = rllm_here(*arguments, "--save", "one")
    assert refused.returncode == 2
    check_printed(refused.stderr, "other-evaluation", "one", "step_000002 (weights ")
    assert rllm_here(*arguments, "--save", "other").returncode == 0
    first, second, *_ = rllm_here("eval", "compare", "one", "other").stdout.splitlines()
    assert first.startswith("first: ") and second.startswith("second: ")
    assert first.rpartition("weights ")[2] != second.rpartition("weights ")[2]


@pytest.mark.parametrize(("key", "goes_on"), [("training.learning_rate", True), ("data.max_response_length", False)])
def test_only_keys_of_evaluations_make_a_different_one(rllm_here: Any, kept: Path, key: str, goes_on: bool) -> None:
    saved = json.loads((kept / "eval.json").read_text())
    section, name = key.split(".")
    saved["environments"]["guess"]["config"][section][name] = 3.5  # As if an earlier version had a different default.
    (kept / "eval.json").write_text(json.dumps(saved))
    done = rllm_here("eval", "guess", "--save", "kept", *TINY)
    assert done.returncode == (0 if goes_on else 2)
    assert (f"{key} of guess was 3.5" in done.stderr) is not goes_on


@pytest.mark.parametrize("backend", ["local", "tinker", "verl"])
def test_backend_specifies_its_keys_for_training_only(backend: str) -> None:
    settings = {"rllm.env.name": "guess", "rllm.backend": backend}
    settings |= {"tinker_base_url": "local"} if backend == "tinker" else {}
    evaluation = EvaluationPlan(make_plan(compose(REGISTRY, [layer_from_keys(settings, "the test")]), REGISTRY), None)
    of_evaluation = {"rllm.trainer.seed", "rllm.rollout.n_val", evaluation.plan.backend.plugin.model_key}
    of_evaluation |= {"actor_rollout_ref.rollout.max_model_len"} if backend == "verl" else {"training.max_length"}
    of_evaluation |= {"data.max_response_length", "sampling.val.temperature"}
    of_training = {
        "rllm.rollout.n",
        "rllm.trainer.save_freq",
        "rllm.algorithm.eps_clip",
        evaluation.plan.backend.plugin.learning_rate_key,
    }
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
def test_two_evaluations_are_compared_task_by_task(rllm_here: Any, kept: Path) -> None:
    rllm_here("eval", "guess", "--save", "other", *TINY, "--seed", "1")
    shown = rllm_here("eval", "compare", "kept", "other")
    assert shown.stdout.splitlines()[3].split()[:3] == ["guess", "16", "pass@1"]
    (line,) = shown.stderr.splitlines()
    check_values(line, "sum (only in kept)")
    (there,) = json.loads(rllm_here("eval", "compare", "kept", "other", "--json").stdout)["environments"]
    (back,) = json.loads(rllm_here("eval", "compare", "other", "kept", "--json").stdout)["environments"]
    assert there["passed"]["difference"]["value"] == -back["passed"]["difference"]["value"]
    assert there["passed"]["p"] == back["passed"]["p"]
    same = json.loads(rllm_here("eval", "compare", "kept", "kept", "--json").stdout)["environments"][0]
    assert (same["passed"]["difference"]["value"], same["passed"]["p"], same["reward"]["p"]) == (0.0, 1.0, 1.0)


def test_different_tasks_are_not_compared(rllm_here: Any, kept: Path) -> None:
    rllm_here("eval", "sum", "--save", "few", *TINY, "rllm.env.env_args.largest=1")
    done = rllm_here("eval", "compare", "few", "kept")
    assert done.returncode == 2
    check_printed(done.stderr, "different-evaluations", "few", "kept", "sum")
    rllm_here("eval", "guess", "--save", "guesses", "--model", "tiny", "rllm.rollout.n_val=1")
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


GONE = {
    "adv_estimator": ("algorithm", "gone/mine"),
    "loss_fn": ("algorithm", "gone/mine"),
    "estimator_map": ("algorithm", {"agent": "gone/mine"}),
    "logger": ("trainer", ["gone/mine"]),
}
"""Keys of plugins that a run used only for its training."""


@pytest.mark.long
@pytest.mark.parametrize("backend", [(), ("--backend", "local")])
def test_run_is_evaluated_without_its_training_plugins(
    rllm_here: Any, recorded_runs: RecordedRuns, backend: tuple[str, ...]
) -> None:
    run = recorded_runs.copy("synchronous", Path("runs/rllm-training/guess-1"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key, (section, value) in GONE.items():
        config["rllm"][section][key] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    ended = rllm_here("eval", "guess", "--model", str(run / "checkpoints/latest"), *backend)
    assert ended.returncode == 0, ended.stderr
    assert "the config of runs/rllm-training/guess-1" in ended.stderr
