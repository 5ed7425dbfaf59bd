"""`rllm plugins new --from`: the package that calls a function of verl or of the author's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed

from rllm.cli.main import main

RANK = '''"""An estimator written for verl."""

import torch


def compute_rank_advantage(token_level_rewards, response_mask, index, power: float = 1.0, config=None, **kwargs):
    scores = token_level_rewards.sum(dim=-1)
    advantages = torch.zeros_like(scores)
    for group in set(index):
        members = torch.tensor([place for place, name in enumerate(index) if name == group])
        differences = scores[members, None] - scores[None, members]
        advantages[members] = differences.sign().sum(dim=1) * power
    return advantages.unsqueeze(-1) * response_mask, scores


def compute_raw_advantage(token_level_rewards, response_mask):
    return token_level_rewards.sum(dim=-1, keepdim=True) * response_mask


def compute_centered_advantage(token_level_rewards, response_mask):
    scores = token_level_rewards.sum(dim=-1, keepdim=True)
    return (scores - scores.mean()) * response_mask


def compute_pair_advantage(token_level_rewards, response_mask, index):
    if len(set(index)) == len(index):
        raise ValueError("groups of one")
    return compute_rank_advantage(token_level_rewards, response_mask, index)


def compute_with_batch(token_level_rewards, response_mask, batch=None):
    return token_level_rewards


def compute_sum(values):
    return values.sum()


def unclipped_loss(old_log_prob, log_prob, advantages, response_mask, scale: float = 1.0):
    return -(log_prob - old_log_prob).clamp(-20, 20).exp() * advantages * scale


def reinforce_loss(log_prob, advantages, response_mask):
    return -log_prob * advantages.detach()


def surrogate_loss(old_log_prob, log_prob, advantages, response_mask):
    return -(log_prob - old_log_prob).clamp(-20, 20).exp().detach() * advantages * log_prob


def mean_loss(log_prob, advantages, response_mask):
    return -(log_prob * advantages * response_mask).sum() / response_mask.sum()


class Estimator:
    pass
'''
VERL = {"grpo": "group", "rloo": "group", "opo": "group", "gpg": "role", "remax": "trajectory"}
"""Name in verl's functions -> scope of the advantages."""
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")


@pytest.fixture(autouse=True)
def rank_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rank.py"
    file.write_text(RANK)
    return file


VERL_LOSSES = ("vanilla", "gspo", "sapo", "gpg", "cispo", "dppo_tv")


def port(name: str, source: str, kind: str = "estimator") -> dict[str, str]:
    """Write a package that calls a function, and return the text of its modules by file name."""
    assert main(["plugins", "new", name, "--kind", kind, "--from", source]) == 0
    return {file.name: file.read_text() for file in Path(name).rglob("*.py")}


def run_tests(*names: str) -> str:
    """Install packages into a directory, and return the output of their tests."""
    pip = (sys.executable, "-m", "pip", "install", *OFFLINE, "--target", "site", *(f"./{name}" for name in names))
    subprocess.run(pip, check=True, timeout=400)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    environ = os.environ | {"PYTHONPATH": "site"}
    finished = subprocess.run(tests, env=environ, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_package_contains_the_file_and_its_options(rank_file: Path) -> None:
    files = port("my-rank", "rank.py:compute_rank_advantage")

    assert files["original.py"] == rank_file.read_text()
    assert "    power: float = Field(default=1.0, " in files["options.py"]
    assert "        power=params.power,\n" in files["estimator.py"]


@pytest.mark.parametrize(("function", "scope"), [("rank", "group"), ("raw", "trajectory"), ("centered", "role")])
def test_scope_of_the_function_is_measured(function: str, scope: str) -> None:
    assert f'scope="{scope}"' in port("my-port", f"rank.py:compute_{function}_advantage")["plugin.py"]


def test_batches_that_the_function_rejects_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    port("my-pair", "rank.py:compute_pair_advantage")

    printed = capfd.readouterr().err
    assert printed.startswith("warning: ")
    assert "ValueError: groups of one" in printed


@pytest.mark.parametrize(
    ("function", "has_ratio", "is_exact"),
    [("unclipped", True, True), ("reinforce", False, True), ("surrogate", True, False)],
)
def test_ratio_and_gradient_of_a_loss_are_measured(function: str, has_ratio: bool, is_exact: bool) -> None:
    files = port("my-port", f"rank.py:{function}_loss", "loss")

    assert ("has_ratio=False" not in files["plugin.py"]) == has_ratio
    assert ('gradient = "surrogate"' not in files["test_my_port.py"]) == is_exact


def test_mean_without_weights_is_no_token_loss(capfd: pytest.CaptureFixture[str]) -> None:
    port("my-port", "rank.py:mean_loss", "loss")

    assert "no weighted mean" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("source", "code", "values"),
    [
        ("rank.py:compute_with_batch", "argument-not-available", ["compute_with_batch", "`batch`"]),
        ("rank.py:compute_sum", "argument-not-available", ["compute_sum", "response_mask"]),
        ("rank.py:compute_rank_advantages", "source-not-found", ["Did you mean 'compute_rank_advantage'"]),
        ("rank.py:Estimator", "source-not-found", ["'Estimator', which is not a function"]),
        ("other.py:f", "file-not-found", ["other.py"]),
        ("compute_rank_advantage", "bad-source", ["'compute_rank_advantage'"]),
        ("no_such_library:losses.f", "source-not-importable", ["pip install no_such_library"]),
    ],
)
def test_unusable_source_writes_nothing(source: str, code: str, values: list[str], capfd: Any) -> None:
    assert main(["plugins", "new", "my-port", "--from", source]) == 2
    check_printed(capfd.readouterr().err, code, *values)
    assert not Path("my-port").exists()


def test_other_kinds_are_not_ported(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "my-port", "--kind", "reward", "--from", "rank.py:compute_rank_advantage"]) == 2
    check_printed(capfd.readouterr().err, "kind-not-portable", "reward", "--kind estimator")


@pytest.mark.long
def test_ported_functions_of_verl_pass_their_tests(tmp_path: Path) -> None:
    pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
    names = [f"my-{name}" for name in VERL]
    for (name, scope), package in zip(VERL.items(), names, strict=True):
        files = port(package, f"verl:trainer.ppo.core_algos.compute_{name}_outcome_advantage")
        assert f'scope="{scope}"' in files["plugin.py"]
    port("my-rank", "rank.py:compute_rank_advantage")
    port("my-unclipped", "rank.py:unclipped_loss", "loss")
    for name in VERL_LOSSES:
        port(f"my-{name.replace('_', '-')}-loss", f"verl:compute_policy_loss_{name}", "loss")
    losses = ["my-unclipped", *(f"my-{name.replace('_', '-')}-loss" for name in VERL_LOSSES)]

    # The estimator of single trajectories has no center, and no loss reports clipped tokens.
    assert f"{1 + len(losses)} skipped" in run_tests(*names, "my-rank", *losses)
    for command in (["check"], ["format", "--check"]):
        written = [sys.executable, "-m", "ruff", *command, "--no-cache", "--exclude", "original.py,rank.py,site", "."]
        finished = subprocess.run(written, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stdout


@pytest.mark.long
def test_tests_are_skipped_without_the_package(rank_file: Path) -> None:
    """A package of a library that is not installed any more."""
    library = rank_file.parent / "library"
    library.mkdir()
    (library / "__init__.py").write_text(RANK)
    sys.path.insert(0, str(rank_file.parent))
    try:
        port("my-rank", "library:compute_rank_advantage")
    finally:
        sys.path.remove(str(rank_file.parent))
        sys.modules.pop("library", None)
    library.rename(rank_file.parent / "elsewhere")

    assert "skipped" in run_tests("my-rank").splitlines()[-1]
