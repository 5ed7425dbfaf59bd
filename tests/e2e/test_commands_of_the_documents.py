"""The commands of pages without their own test, one page after the other from top to bottom.

Trainings have three steps. A command that needs a service or GPUs runs with `--dry-run`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from documents import blocks, commands, text_of

from rllm.config.layers import layer_from_file
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

pytestmark = pytest.mark.long

Rllm = Callable[..., subprocess.CompletedProcess[str]]
SHORT = {
    "rllm.trainer.total_batches": "3",
    "rllm.rollout.n": "4",
    "data.train_batch_size": "8",
    "rllm.rollout.n_val": "1",
    "rllm.trainer.val_before_train": "false",
    "rllm.unused_keys": "warn",
}
IN_PLACE_OF = {"./some-hf-directory": "tiny", "./directory": "tiny", "./my-model": "tiny", "MY_ENVIRONMENT": "guess"}
IN_PLACE_OF["HuggingFaceTB/SmolLM2-135M-Instruct"] = "tiny"
FILES: Mapping[str, Callable[[], dict[str, str]]] = {
    "docs/how-to/async.md": lambda: {"async.yaml": blocks("docs/how-to/async.md", "yaml")[0]},
    "docs/how-to/off-policy.md": lambda: {"async.yaml": blocks("docs/how-to/async.md", "yaml")[0]},
    "docs/how-to/configure.md": lambda: {"my.yaml": blocks("docs/how-to/configure.md", "yaml")[0]},
    "docs/how-to/train.md": lambda: {"my.yaml": "rllm: {trainer: {project_name: mine}}\n"},
    "docs/how-to/fine-tune.md": lambda: (
        dict.fromkeys(("train.jsonl", "val.jsonl"), blocks("docs/how-to/fine-tune.md", "json")[0])
        | {"questions.jsonl": blocks("docs/how-to/fine-tune.md", "json")[1]}
    ),
    "docs/how-to/preferences.md": lambda: dict.fromkeys(
        ("pairs.jsonl", "val.jsonl"), blocks("docs/how-to/preferences.md", "json")[0]
    ),
    "docs/how-to/python.md": lambda: {
        "my_estimators.py": python_with("register_rllm_adv_estimator"),
        "my_world.py": python_with("register_rllm_environment"),
    },
}
"""Files in the directory before the first command."""
BEFORE = {
    "docs/explain/resume.md": ["train guess"],
    "docs/backends/verl-operate.md": ["train guess"],
}
"""Commands that a page requires before its own."""
NOT_RUN = {
    "rllm train sum rllm.rollout.engine=vllm": "vLLM has its own environment: `make test-vllm`",
    "rllm train sum rllm/backend=verl --profile cpu_vllm": "its own environment: `make test-verl-vllm`",
    "rllm train MY_ENVIRONMENT rllm/backend=verl": "GPUs: `make smoke-gpu`",
    "rllm plugins doctor --gpu": "reports a missing GPU, and fails; rllm_verl/tests and `make smoke-gpu`",
    "rllm tinker serve --model": "listens until it is stopped; plugins/rllm_tinker_server/tests/command start it",
    "TINKER_BASE_URL=": "a program of yours",
    "rllm export runs/rllm-training/default --to adapter": "of a LoRA run of the backend `tinker`; rllm_tinker/tests",
    "python train.py": "a Hydra script: tests/e2e/test_python_in_the_guides.py",
}
PLANNED = ("rllm/backend=tinker", "rllm/backend=verl")
"""Arguments of commands that run with `--dry-run` only, because they need a service or half a minute of Ray."""
PAGES = (
    "docs/backends/tinker-server.md",
    "docs/backends/tinker.md",
    "docs/backends/verl-keys.md",
    "docs/backends/verl-operate.md",
    "docs/backends/verl.md",
    "docs/explain/resume.md",
    "docs/explain/step.md",
    "docs/how-to/async.md",
    "docs/how-to/choose-an-algorithm.md",
    "docs/how-to/configure.md",
    "docs/how-to/fine-tune.md",
    "docs/how-to/follow-a-run.md",
    "docs/how-to/off-policy.md",
    "docs/how-to/predict-observations.md",
    "docs/how-to/preferences.md",
    "docs/how-to/python.md",
    "docs/how-to/rescore.md",
    "docs/how-to/sample-with-vllm.md",
    "docs/how-to/train.md",
)


def python_with(name: str) -> str:
    """Return the block of Train from Python that registers something, without the training after it."""
    (block,) = (each for each in blocks("docs/how-to/python.md", "python") if f"@{name}(" in each)
    return re.sub(r"^(AgentTrainer\(|config = ).*", "", block, flags=re.MULTILINE | re.DOTALL)


def words_of(command: str) -> list[str]:
    """Return the arguments of `rllm` for a short run in a directory that may have other runs."""
    words = [IN_PLACE_OF.get(word, word) for word in shlex.split(command, comments=True)][1:]
    if words[0] not in ("train", "eval"):
        return words
    keys = {word.partition("=")[0] for word in words}
    words += [f"{key}={value}" for key, value in SHORT.items() if key not in keys and is_for(words[0], key)]
    if any(word in PLANNED for word in words):
        words.append("--dry-run")
    if words[0] == "train" and "--resume" not in words:
        words.append("--overwrite")
    return list(dict.fromkeys(words))


def is_for(command: str, key: str) -> bool:
    return command == "train" or key == "rllm.rollout.n_val"


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_run(
    page: str, rllm_of_page: Rllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.get(page, dict)().items():
        (tmp_path / name).write_text(text)
    tried = [command for command in commands(page) if command.startswith("rllm ")]
    tried = [command for command in tried if not command.startswith(tuple(NOT_RUN))]
    assert tried

    for command in [*(f"rllm {each}" for each in BEFORE.get(page, ())), *tried]:
        shown = said_to_be_refused(page, command)
        done = rllm_of_page(*(shlex.split(command)[1:] if shown else words_of(command)))
        assert done.returncode == (2 if shown else 0), f"{command}\n{done.stderr}"
        assert shown in " ".join(done.stderr.split())


def said_to_be_refused(page: str, command: str) -> str:
    """Return the error that the page shows below a command, on one line. Empty if it shows none."""
    below = text_of(page).partition(f"$ {command}\n")[2].partition("\n\n")[0]
    return " ".join(below.split()) if below.lstrip().startswith("error[") else ""


@pytest.mark.parametrize("reason", NOT_RUN)
def test_what_is_not_run_is_still_on_a_page(reason: str) -> None:
    assert any(command.startswith(reason) for page in PAGES for command in commands(page))


def test_the_pipeline_in_the_reference_is_one(worlds: Registry, tmp_path: Path) -> None:
    (text,) = blocks("docs/reference/pipeline.md", "yaml")
    (tmp_path / "my.yaml").write_text(text.replace("my_stage", "impute_names").replace("my_grouping_stage", "group"))
    with pytest.raises(ConfigError, match="impute_names"):
        plan_of({"rllm.env.name": "guess"}, worlds, [layer_from_file(tmp_path / "my.yaml")])


def test_the_record_is_read_as_the_reference_says(
    rllm_of_page: Rllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rllm_of_page(*words_of("rllm train guess rllm.record=tokens")).returncode == 0
    monkeypatch.chdir(tmp_path)
    of_outcomes, of_tokens = blocks("docs/reference/run-directory.md", "python")
    exec(of_outcomes.replace("step_000012", "step_000001"), {})
    assert "trained" in capsys.readouterr().out
    exec(of_tokens.replace("(12", "(1"), {})
    assert "'aggregation': '" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["docs/reference/testing.md", "docs/how-to/plugin.md"])
def test_the_python_of_the_page_imports_what_there_is(page: str) -> None:
    """This is a contract test of a user's plugin. tests/contract runs it with our plugins."""
    for code in blocks(page, "python"):
        exec(code, {"__name__": "example"})
