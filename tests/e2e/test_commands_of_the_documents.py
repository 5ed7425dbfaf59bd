"""The commands of pages, one page after the other from top to bottom.

Trainings run with `--dry-run`. Other commands read recorded runs. Pages that show the output of a run have their own
tests.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import blocks, commands, text_of
from expecting import check_values
from omegaconf import OmegaConf
from recorded_runs import RecordedRuns

from rllm.config.layers import layer_from_file
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

Rllm = Callable[..., subprocess.CompletedProcess[str]]
SUBSTITUTES = dict.fromkeys(("./directory", "./my-model", "HuggingFaceTB/SmolLM2-135M-Instruct"), "./some-hf-directory")
Block = tuple[str, str, int]
"""A page, a language, and the number of the block."""
HOW_TO = "docs/how-to"
SUM = {"train.jsonl": ("README.md", "json", 0)}
AHEAD = {"async.yaml": (f"{HOW_TO}/async.md", "yaml", 0)}
PAGES: dict[str, dict[str, Block]] = {
    "docs/backends/tinker-server.md": {},
    "docs/backends/tinker.md": {},
    "docs/backends/verl-keys.md": {},
    "docs/backends/verl-operate.md": {},
    "docs/backends/verl.md": {},
    "docs/explain/resume.md": {},
    "docs/explain/step.md": {},
    "docs/faq.md": SUM | {"rewards.py": ("docs/tutorial.md", "python", 0)},
    f"{HOW_TO}/async.md": AHEAD,
    f"{HOW_TO}/choose-an-algorithm.md": {},
    f"{HOW_TO}/configure.md": {"my.yaml": (f"{HOW_TO}/configure.md", "yaml", 0)},
    f"{HOW_TO}/fine-tune.md": {
        "train.jsonl": (f"{HOW_TO}/fine-tune.md", "json", 0),
        "val.jsonl": (f"{HOW_TO}/fine-tune.md", "json", 0),
        "questions.jsonl": (f"{HOW_TO}/fine-tune.md", "json", 1),
    },
    f"{HOW_TO}/follow-a-run.md": {},
    f"{HOW_TO}/from-trl.md": {
        "train.jsonl": (f"{HOW_TO}/from-trl.md", "json", 0),
        "trl_reward.py": (f"{HOW_TO}/from-trl.md", "python", 0),
        "run.yaml": (f"{HOW_TO}/from-trl.md", "yaml", 0),
        "trl_environment.py": (f"{HOW_TO}/from-trl.md", "python", 1),
    },
    f"{HOW_TO}/gymnasium.md": {},
    f"{HOW_TO}/off-policy.md": AHEAD,
    f"{HOW_TO}/open-spiel.md": {},
    f"{HOW_TO}/predict-observations.md": {},
    f"{HOW_TO}/preferences.md": {
        "pairs.jsonl": (f"{HOW_TO}/preferences.md", "json", 0),
        "val.jsonl": (f"{HOW_TO}/preferences.md", "json", 0),
        **SUM,
    },
    f"{HOW_TO}/python.md": {},
    f"{HOW_TO}/read-metrics.md": {},
    f"{HOW_TO}/reasoning-gym.md": {},
    f"{HOW_TO}/rescore.md": {},
    f"{HOW_TO}/sample-with-vllm.md": {},
    f"{HOW_TO}/size-a-run.md": {},
    f"{HOW_TO}/textarena.md": {},
    f"{HOW_TO}/tools.md": {
        "train.jsonl": (f"{HOW_TO}/tools.md", "json", 0),
        "tools.py": (f"{HOW_TO}/tools.md", "python", 0),
        "box.py": (f"{HOW_TO}/tools.md", "python", 1),
    },
    f"{HOW_TO}/train.md": {"my.yaml": (f"{HOW_TO}/configure.md", "yaml", 0)},
    "docs/install.md": {},
    "rllm/src/rllm/.agents/skills/rllm/SKILL.md": {},
    "docs/troubleshooting.md": {},
    "docs/tutorial.md": SUM
    | {"rewards.py": ("docs/tutorial.md", "python", 0), "sums.yaml": ("docs/tutorial.md", "yaml", 0)},
}
"""Files in the directory before the first command of each page."""
NOT_RUN = {
    "rllm train sum rllm.rollout.engine=vllm": "vLLM has its own environment: `make test-vllm`",
    "rllm train sum rllm/backend=verl --profile cpu_vllm": "its own environment: `make test-verl-vllm`",
    "rllm train MY_ENVIRONMENT rllm/backend=verl": "GPUs: `make smoke-gpu`",
    "rllm plugins doctor --gpu": "reports a missing GPU, and fails; rllm_verl/tests and `make smoke-gpu`",
    "rllm tinker serve --model": "listens until it is stopped; plugins/rllm_tinker_server/tests/command start it",
    "TINKER_BASE_URL=": "a program of yours",
    "rllm export runs/rllm-training/guess-1 --to adapter": "of a LoRA run of the backend `tinker`; rllm_tinker/tests",
    "rllm train guess --estimator my_estimator": "a new package; tests/e2e/test_scaffold.py trains with it",
    "python train.py": "a Hydra script: tests/e2e/test_python_in_the_guides.py",
}
PLACES = {
    "runs/rllm-training/guess-1": "synchronous",
    "runs/rllm-training/echo-1": "synchronous",
    "runs/rllm-training/open_spiel-kuhn_poker-1": "synchronous",
    "runs/rllm-training/distilled": "synchronous",
    "runs/rllm-sft/run-1": "sft",
    "runs/rllm-reward-model/run-1": "sft",
}
"""Directories of pages, and the recorded runs that replace them."""


def python_with(name: str) -> str:
    """Return the block of Train from Python that registers something, without the training after it."""
    (block,) = (each for each in blocks(f"{HOW_TO}/python.md", "python") if f"@{name}(" in each)
    return re.sub(r"^(AgentTrainer\(|config = ).*", "", block, flags=re.MULTILINE | re.DOTALL)


def words_of(command: str) -> list[str]:
    """Return the arguments of `rllm`, in a directory that may have other runs."""
    words = [SUBSTITUTES.get(word, word) for word in shlex.split(command, comments=True)][1:]
    if words[0] in ("train", "sft", "prefer"):
        wanted = ["--dry-run"] if "--resume" in words else ["--dry-run", "--overwrite"]
        return [*words, *(word for word in wanted if word not in words)]
    return [*words, "rllm.rollout.n_val=1"] if words[0] == "eval" and not re.search("n_val|compare", command) else words


@pytest.mark.long
@pytest.mark.usefixtures("with_view", "nothing_stays_registered")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_run(
    page: str, rllm_here: Rllm, recorded_runs: RecordedRuns, tool_model: Path, tmp_path: Path
) -> None:
    modules = {*sys.modules}
    (tmp_path / "some-hf-directory").symlink_to(tool_model)
    for name, (source, language, number) in PAGES[page].items():
        (tmp_path / name).write_text(blocks(source, language)[number])
    if page.endswith("/python.md"):
        (tmp_path / "my_estimators.py").write_text(python_with("register_rllm_adv_estimator"))
        (tmp_path / "my_world.py").write_text(python_with("register_rllm_environment"))
    tried = [command for command in commands(page) if command.startswith("rllm ")]
    tried = [command for command in tried if not command.startswith(tuple(NOT_RUN))]
    assert tried
    for place, name in PLACES.items():
        if any(place in command or "--resume" in command for command in tried):
            recorded_runs.copy(name, tmp_path / place)

    for command in tried:
        shown = said_to_be_refused(page, command)
        done = rllm_here(*(shlex.split(command)[1:] if shown else words_of(command)))
        assert done.returncode == (2 if shown else 0), f"{command}\n{done.stderr}"
        assert shown in " ".join(done.stderr.split())
    for name in {*sys.modules} - modules:
        if hasattr(sys.modules[name], "__file__") and str(sys.modules[name].__file__).startswith(str(tmp_path)):
            del sys.modules[name]


def said_to_be_refused(page: str, command: str) -> str:
    """Return the error that the page shows below a command, on one line. Empty if it shows none."""
    if page == "docs/tutorial.md" and "eps_clip=0.3" in command and "train" in command:
        return "error[unused-key]"
    below = text_of(page).partition(f"$ {command}\n")[2].partition("\n\n")[0]
    return " ".join(below.split()) if below.lstrip().startswith("error[") else ""


def test_dry_run_shows_what_the_async_configuration_means(rllm_here: Rllm, tmp_path: Path) -> None:
    (tmp_path / "ahead.yaml").write_text(blocks(*AHEAD["async.yaml"][:2])[0])
    done = rllm_here("train", "guess", "--config", "ahead.yaml", "--dry-run")
    check_values(done.stdout, "1 step. ", "1 update old", "of 1 step")


@pytest.mark.parametrize("reason", NOT_RUN)
def test_command_that_is_not_run_is_on_page(reason: str) -> None:
    assert any(command.startswith(reason) for page in PAGES for command in commands(page))


@pytest.mark.parametrize(
    ("page", "settings"),
    [
        ("own-data", {"rllm.reward": ["exact"]}),
        ("write-a-reward", {"data.train_dataset": "train.jsonl"}),
        ("tools", {"rllm.reward": ["exact"]}),
        ("your-agent", {"rllm.reward": ["exact"]}),
    ],
)
def test_yaml_of_the_page_is_a_configuration(
    page: str, settings: dict[str, Any], worlds: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"my.yaml": (f"{HOW_TO}/{page}.md", "yaml", 0), "my_agent.py": (f"{HOW_TO}/your-agent.md", "python", 0)}
    for name, (source, language, number) in {**files, **PAGES[f"{HOW_TO}/tools.md"], **SUM}.items():
        (tmp_path / name).write_text(blocks(source, language)[number])
    layer = layer_from_file(tmp_path / "my.yaml")
    tree = OmegaConf.create(plan_of({"rllm.env.name": "question", **settings}, worlds, [layer]).composed.tree)
    assert OmegaConf.merge(tree, OmegaConf.load(tmp_path / "my.yaml")) == tree


def test_the_pipeline_in_the_reference_is_one(worlds: Registry, tmp_path: Path) -> None:
    (text,) = blocks("docs/reference/pipeline.md", "yaml")
    (tmp_path / "my.yaml").write_text(text.replace("my_stage", "impute_names").replace("my_grouping_stage", "group"))
    with pytest.raises(ConfigError, match="impute_names"):
        plan_of({"rllm.env.name": "guess"}, worlds, [layer_from_file(tmp_path / "my.yaml")])


@pytest.mark.long
def test_the_record_is_read_as_the_reference_says(
    recorded_runs: RecordedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(recorded_runs.path("synchronous").parents[2])
    of_outcomes, of_tokens = blocks("docs/reference/run-directory.md", "python")
    exec(of_outcomes.replace("step_000012", "step_000001"), {})
    assert "trained" in capsys.readouterr().out
    exec(of_tokens.replace("(12", "(1"), {})
    assert "'aggregation': '" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("page", ["docs/reference/testing.md", "docs/how-to/plugin.md"])
def test_python_of_the_page_imports_existing_names(page: str) -> None:
    """This is a contract test of a user's plugin. tests/contract runs it with our plugins."""
    for code in blocks(page, "python"):
        exec(code, {"__name__": "example"})
