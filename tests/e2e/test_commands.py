"""Output and files of the README's commands."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from expecting import check_one_error, check_printed, check_values
from recorded_runs import RecordedRuns

from rllm.runs.run_directory import RunDirectory
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

FEW_STEPS = (
    "rllm.trainer.total_batches=2",
    "rllm.trainer.save_freq=1",
    "rllm.trainer.test_freq=1",
    "rllm.rollout.n=2",
    "rllm.rollout.n_val=2",
    "data.train_batch_size=4",
)
LOG_EPISODES = "rllm.episode_logging.log_episodes=true"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "rllm-training" / "guess-1"


@pytest.mark.smoke
@pytest.mark.parametrize("words", [(), ("model.lora_rank=4",)], ids=["all weights", "LoRA"])
def test_progress_without_terminal_is_lines_and_a_table(words: tuple[str, ...], forked_rllm: Any) -> None:
    """Progress is plain lines, a table ends it, and the checkpoint is evaluated to the values of the table."""
    lines = forked_rllm("train", "guess", *FEW_STEPS, *words).stdout.splitlines()
    check_values(lines[0], "guess", "backend local", "runs/rllm-training/guess-1")
    check_values(lines[1], "rllm.record=outcomes", "rllm view runs/rllm-training/guess-1")
    check_values(lines[2], "0 steps", "guess: pass@1 ")
    assert any(line.startswith("2/2 steps  solved ") and "tokens/s" in line and "left" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
    assert [line.rpartition(": ")[2] for line in lines[-3:]] == [
        "rllm eval guess --model runs/rllm-training/guess-1/checkpoints/latest",
        "rllm view runs/rllm-training/guess-1",
        "rllm why runs/rllm-training/guess-1",
    ]
    table = [line.split("│") for line in lines if "guess" in line and "│" in line]
    validated = {cells[1].split()[1]: float(cells[2]) for cells in table}
    assert "guesses" in validated
    evaluated = forked_rllm("eval", "guess", "--json", "--model", "runs/rllm-training/guess-1/checkpoints/latest")
    assert evaluated.returncode == 0, evaluated.stderr
    model = "runs/rllm-training/guess-1/checkpoints/latest"
    check_values(evaluated.stderr, "guess", f"model {model}", "config of runs/rllm-training/guess-1")
    (metrics,) = json.loads(evaluated.stdout)["environments"]
    reached = {f"pass@{k}": estimate["value"] for k, estimate in metrics["passes"].items()}
    reached |= {"reward": metrics["reward"]["value"], **metrics["metrics"]}
    assert {name: round(reached[name], 3) for name in validated} == validated


@pytest.mark.usefixtures("with_view")
@pytest.mark.long
def test_in_a_terminal_progress_is_live(tmp_path: Path, run: Path, environ: dict[str, str]) -> None:
    """The run writes everything that is needed to repeat and to continue it."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "rllm.cli.main", "train", "guess", *FEW_STEPS, LOG_EPISODES]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environ | {"TERM": "xterm"}, stdout=terminal, stderr=terminal, stdin=terminal
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 4096):
            shown += chunk
    except OSError:
        pass  # the terminal is closed when the process ends
    assert process.wait(timeout=200) == 0, shown.decode()
    text = shown.decode()
    assert "\x1b[" in text, "colors and cursor movements"
    assert "2/2" in text
    assert "solved" in text
    assert "tokens/s" in text
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "plugins.json", "metrics.jsonl", "checkpoints", "episodes", "report.html"} <= names
    assert sorted(path.name for path in (run / "episodes").iterdir()) == [f"step_{i:06d}.jsonl.gz" for i in range(2)]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["latest", "step_000001", "step_000002"]
    assert (run / "checkpoints" / "latest").readlink() == Path("step_000002")
    used = {
        (entry["kind"], entry["name"]): entry["distribution"]
        for entry in json.loads((run / "plugins.json").read_text())
    }
    assert used["backend", "local"] == "rllm-local"
    assert used["environment", "guess"] == "rllm"
    assert used["estimator", "grpo"] == "rllm-core"


@pytest.mark.long
def test_a_local_model_directory_is_trained(rllm_here: Any, run: Path, tool_model: Path, tmp_path: Path) -> None:
    (tmp_path / "some-hf-directory").symlink_to(tool_model)
    words = ("--estimator", "rloo", "--model", "./some-hf-directory", "data.max_response_length=4")
    result = rllm_here("train", "guess", *FEW_STEPS, *words)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["actor/rollout_logprob_difference"] < 1e-4 for line in lines if "actor/loss" in line)
    assert "name: ./some-hf-directory" in (run / "config.yaml").read_text()


@pytest.mark.parametrize("more", [(), ("--all",)])
def test_dry_run_shows_plan_and_trains_nothing(rllm_here: Any, tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "my.yaml").write_text("rllm:\n  rollout:\n    n: 5\n")
    words = ("--config", "my.yaml", "--estimator", "rloo", "--role-estimator", "judge=reinforce")
    result = rllm_here("train", "guess", "--dry-run", *words, *more)
    assert result.returncode == 0, result.stderr
    rows = {words[0]: words for words in map(str.split, result.stdout.splitlines()) if words}
    assert rows["build_batch"][1:] == ["rllm-core", "trajectory_groups", "batch"]
    assert rows["rllm.rollout.n"][1:] == ["5", "my.yaml"]
    assert rows["rllm.algorithm.adv_estimator"][1:] == ['"rloo"', "command", "line"]
    assert rows["rllm.algorithm.estimator_map.judge"][1:] == ['"reinforce"', "command", "line"]
    assert rows["rllm.env.env_args.prompt"][1:] == ['"guess"', "recipe", "guess", "local/tiny"]
    assert rows["rllm.workflow.name"][1:] == ['"multi_turn_workflow"', "environment", "guess"]
    assert rows["model.name"][1:] == ['"tiny"', "backend", "local"]
    defaults = [rows.get(key) for key in ("training.beta1", "rllm.trainer.seed")]
    shown = [["training.beta1", "0.9", "backend", "local"], ["rllm.trainer.seed", "0", "default"]]
    assert defaults == (shown if more else [None, None])
    assert ("--all" in result.stdout) == (not more)
    assert len(result.stdout.splitlines()) < (300 if more else 70)
    assert not (tmp_path / "runs").exists()


def test_grouping_estimators_rejection_and_loss_are_flags(rllm_here: Any) -> None:
    flags = ("--estimator", "rloo", "--role-estimator", "judge=reinforce", "--grouping", "task")
    flags += ("--rejection", "group", "--loss", "importance_sampling")
    done = rllm_here("train", "guess", *flags, "--dry-run")
    assert done.returncode == 0, done.stderr
    planned = ("estimator rloo", "estimator reinforce", "grouping task", "loss importance_sampling", "rejection group")
    for record in planned:
        assert f"{record} rllm-core" in " ".join(done.stdout.split())


def test_only_a_dry_run_shows_all_values(rllm_here: Any) -> None:
    result = rllm_here("train", "guess", "--all")
    assert (result.returncode, "--all goes with --dry-run." in result.stderr) == (2, True)


def test_dry_run_warns_of_run_in_its_directory(rllm_here: Any, run: Path) -> None:
    run.mkdir(parents=True)
    (run / "plugins.json").write_text("[]")
    checked = rllm_here("train", "guess", f"rllm.trainer.experiment_name={run.name}", "--dry-run")
    assert checked.returncode == 0
    check_values(checked.stderr, "warning: runs/rllm-training/guess-1 contains a run already", "--overwrite")
    assert [path.name for path in run.iterdir()] == ["plugins.json"]


def test_failed_dry_run_prints_only_the_error(rllm_here: Any, tmp_path: Path) -> None:
    """Each of these errors stops a run before its first step."""
    missing = "data.train_dataset={name: jsonl, path: none.jsonl}"
    for words, said in (
        (("--overwrite",), "The run has neither an environment nor a dataset."),
        (("guess", "--overwrite", missing), "none.jsonl"),
        (("guess", "--overwrite", "--model", "./nothing"), "./nothing"),
        (("guess", "model.device=nonsense"), '`model.device` is "nonsense"'),
        (("guess", "rllm.trainer.output_dir=/dev/null/runs"), "cannot be written: /dev/null is a file"),
    ):
        result = rllm_here("train", *words, "--dry-run")
        assert (result.returncode in (1, 2), result.stdout) == (True, ""), words
        assert said in result.stderr
        check_one_error(result.stderr)
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_a_dry_run_loads_neither_torch_nor_transformers(environ: dict[str, str]) -> None:
    code = (
        "import sys; from rllm.cli.main import main; main(['train', 'guess', '--dry-run']); "
        "print({'torch', 'transformers'} & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=200)
    assert result.stderr == "set()\n"


@pytest.mark.long
def test_resumed_run_keeps_the_values_of_its_start(rllm_here: Any, run: Path, recorded_runs: RecordedRuns) -> None:
    recorded_runs.copy("synchronous", run)
    result = rllm_here("train", "guess", "--resume", "rllm.trainer.total_batches=3")
    assert result.returncode == 0, result.stderr
    assert "resuming after 2 of 3 steps" in result.stdout
    config = (run / "config.yaml").read_text()
    assert "num_epochs: 2" in config
    assert "total_batches: 3" in config


@pytest.mark.long
def test_two_processes_cannot_train_in_one_directory(
    forked_rllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worlds: Registry
) -> None:
    monkeypatch.chdir(tmp_path)
    name = {"rllm.trainer.experiment_name": "one"}
    directory = RunDirectory.open(plan_of({"rllm.env.name": "guess", **name}, worlds).config.rllm.trainer)
    second = forked_rllm("train", "guess", "rllm.trainer.experiment_name=one", "--overwrite", *FEW_STEPS)
    directory.close()
    assert second.returncode == 1
    check_printed(second.stderr, "locked-directory", "runs/rllm-training/one")


@pytest.mark.long
def test_eval_accepts_a_training_config(rllm_here: Any, tmp_path: Path) -> None:
    shown = rllm_here("config", "show", "guess", "rllm.trainer.total_batches=3", "rllm.rollout.n_val=1")
    (tmp_path / "given.yaml").write_text(shown.stdout)
    evaluated = rllm_here("eval", "guess", "--config", "given.yaml")
    assert evaluated.returncode == 0, evaluated.stderr
