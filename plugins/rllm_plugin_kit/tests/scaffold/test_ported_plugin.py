"""`rllm plugins new --from`: the package that calls a function of verl, TRL or OpenRLHF, or of the author's file."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from expecting import check_printed

from rllm.cli.main import main
from rllm_core.errors import ConfigError

RANK = '''"""An estimator written for verl."""

import dataclasses
import enum

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


def compute_group_advantages(rewards, num_generations, scale_rewards: bool = True):
    groups = rewards.view(-1, num_generations)
    advantages = groups - groups.mean(dim=1, keepdim=True)
    if scale_rewards:
        advantages = advantages / (groups.std(dim=1, correction=0, keepdim=True) + 1e-4)
    return advantages.flatten()


class ClippedLoss(torch.nn.Module):
    def __init__(self, clip: float = 0.2, ceiling: float | None = None, token_level_loss: bool = True):
        super().__init__()
        self.clip, self.ceiling, self.token_level_loss = clip, ceiling, token_level_loss

    def forward(self, log_probs, old_log_probs, advantages, action_mask=None, dp_size: int = 1):
        ratios = (log_probs - old_log_probs).exp()
        losses = -torch.min(ratios * advantages, ratios.clamp(1 - self.clip, 1 + self.clip) * advantages)
        if self.token_level_loss:
            return (losses * action_mask).sum() / action_mask.sum(), 0.0
        return ((losses * action_mask).sum(-1) / action_mask.sum(-1)).mean(), 0.0


def compute_bounded_advantage(
    token_level_rewards,
    response_mask,
    pattern: str = "a\\\\d \\"$x\\" 'y' \\n",
    quoted: str = 'say "it"',
    path: str = "C:\\\\new",
    high: float = float("inf"),
    low: float = float("-inf"),
):
    assert (pattern, quoted, path) == ("a\\\\d \\"$x\\" 'y' \\n", 'say "it"', "C:\\\\new")
    return token_level_rewards.sum(dim=-1, keepdim=True).clamp(low, high) * response_mask


class Mode(str, enum.Enum):
    FAST = "fast"


def compute_mode_advantage(token_level_rewards, response_mask, mode: Mode = Mode.FAST):
    return compute_raw_advantage(token_level_rewards, response_mask)


def compute_scaled_advantage(token_level_rewards, response_mask, _scale: float = 1.0):
    return compute_raw_advantage(token_level_rewards, response_mask) * _scale


class Maker:
    def returns(self, rewards, action_mask, gamma: float):
        return (rewards * action_mask).flip(1).cumsum(dim=1).flip(1) * gamma

    def advantages(self, rewards, action_mask):
        return self.returns(rewards, action_mask, self.gamma)


class MyTrainer:
    def _compute_loss(self, model, inputs):
        logprobs, _, _ = self._get_per_token_logps_and_entropies(model)
        mask = inputs["completion_mask"]
        return -(logprobs * inputs["advantages"] * mask).sum() / mask.sum()


@dataclasses.dataclass
class ScaledConfig:
    scale: float = 1.0
    beta: float = 0.05
    top_entropy_quantile: float = 1.0
    off_policy_mask_threshold: float | None = None
    temperature: float = 1.0
    weight_decay: float = 0.0
    loss_type: str = "dapo"


class PairTrainer:
    def _compute_loss(self, model, inputs, return_outputs):
        return 0.0


def sequence_loss(old_log_prob, log_prob, advantages, response_mask):
    return -(log_prob - old_log_prob).sum().exp() * advantages


class ScaledTrainer(MyTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) * self.scale


def penalized_loss(log_prob, advantages, response_mask):
    return mean_loss(log_prob, advantages, response_mask) + (log_prob**2).mean()


def weighted_loss(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None):
    ratios = (log_prob - old_log_prob).clamp(-20, 20).exp()
    return -(ratios * advantages * rollout_is_weights * response_mask).sum() / response_mask.sum()


def weighted_loss_with_kl(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None):
    kl = ((old_log_prob - log_prob) ** 2 / 2).mean()
    return weighted_loss(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights) + 0.1 * kl
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


def run_tests(*names: str, path: str = "") -> str:
    """Install packages into a directory, and return the output of their tests. `path` has more packages."""
    pip = (sys.executable, "-m", "pip", "install", *OFFLINE, "--target", "site", *(f"./{name}" for name in names))
    subprocess.run(pip, check=True, timeout=400)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(("site", path) if path else ("site",))}
    finished = subprocess.run(tests, env=environ, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import the module of a package that calls the loss of `ScaledTrainer`."""
    port("my-scaled", "rank.py:ScaledTrainer", "loss")
    monkeypatch.syspath_prepend("my-scaled/src")
    yield importlib.import_module("my_scaled.trainer")
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_scaled"]:
        del sys.modules[name]


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


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("scales", 2.0, "no field 'scales'.*Did you mean 'scale'"),
        ("beta", 0.1, "no effect.*rllm.algorithm.kl_beta"),
        ("top_entropy_quantile", 0.2, "no effect.*Remove it"),
        ("off_policy_mask_threshold", 0.5, "no effect.*rollout_correction.reject.*opsm"),
        ("temperature", 0.5, "no effect.*sampling.train.temperature"),
        ("weight_decay", 0.5, "no effect.*docs/how-to/from-trl.md"),
        ("loss_type", "grpo", "no effect.*loss_agg_mode=seq-mean-token-mean"),
    ],
)
def test_fields_of_a_trainer_have_an_effect(field: str, value: object, words: str, trainer: ModuleType) -> None:
    rows = torch.ones(2, 3, requires_grad=True)

    assert trainer.compute_loss({"scale": 2.0, "beta": 0.0, "temperature": 1.0}, rows, rows, rows, rows).item() == -2.0
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        trainer.compute_loss({field: value}, rows, rows, rows, rows)


def test_defaults_are_those_of_the_function(capfd: pytest.CaptureFixture[str]) -> None:
    files = port("my-port", "rank.py:compute_bounded_advantage")

    assert capfd.readouterr().err == ""  # The probe has called it with the defaults of its options.
    assert '    high: float = Field(default=float("inf"), ' in files["options.py"]
    configs = [block for block in Path("my-port/README.md").read_text().split("```") if "pattern:" in block]
    for block in configs:
        chosen = yaml.safe_load(block.partition("\n")[2])["rllm"]["algorithm"]["adv_estimator"]
        assert chosen["pattern"] == "a\\d \"$x\" 'y' \n"
    assert configs


def test_module_is_ported_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """OpenRLHF's package needs flash-attn, and the module of its losses does not."""
    for file, text in {
        "gpu_library/__init__.py": "",
        "gpu_library/models/__init__.py": "import no_such_kernels",
        "gpu_library/models/sums.py": "def total(values): return values.sum()",
        "gpu_library/models/losses.py": RANK.replace(
            "def mean_loss(log_prob, advantages, response_mask):",
            "def mean_loss(log_prob, advantages, response_mask):\n    from .sums import total",
        ),
        "gpu_library/models/kernels.py": "import no_such_compiler",
    }.items():
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    port("my-mean", "gpu_library:models.losses.mean_loss", "loss")
    assert capfd.readouterr().err == ""  # The probe has called it, and it has imported its neighbour.
    assert main(["plugins", "new", "my-port", "--from", "gpu_library:models.kernels.f"]) == 2
    check_printed(capfd.readouterr().err, "source-not-importable", "No module named 'no_such_compiler'")


def test_config_that_stays_none_is_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    port("my-rank", "rank.py:compute_rank_advantage")

    assert "warning: compute_rank_advantage has the argument `config`, which stays None" in capfd.readouterr().err


@pytest.mark.parametrize("function", ["penalized_loss", "weighted_loss_with_kl"])
def test_mean_with_a_penalty_is_no_token_loss(function: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "my-port", "--kind", "loss", "--from", f"rank.py:{function}"]) == 1
    check_printed(capfd.readouterr().err, "bad-loss", "no weighted mean")
    assert not Path("my-port").exists()


def test_weighted_mean_is_a_sum_of_token_losses(capfd: pytest.CaptureFixture[str]) -> None:
    port("my-port", "rank.py:weighted_loss", "loss")

    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("source", "code", "values"),
    [
        ("rank.py:compute_with_batch", "argument-not-available", ["compute_with_batch", "`batch`"]),
        ("rank.py:compute_sum", "argument-not-available", ["compute_sum", "response_mask"]),
        ("rank.py:compute_rank_advantages", "source-not-found", ["Did you mean 'compute_rank_advantage'"]),
        ("rank.py:Estimator", "source-not-found", ["'Estimator', which is not a function"]),
        ("rank.py:Maker.advantages", "argument-not-available", ["Maker.advantages uses self.gamma, self.returns"]),
        ("rank.py:Maker.other", "source-not-found", ["no function 'other'"]),
        ("rank.py:ClippedLoss", "argument-not-available", ["Add --kind loss"]),
        ("rank.py:MyTrainer", "argument-not-available", ["`rewards` and `num_generations`", "--kind loss"]),
        ("rank.py:compute_mode_advantage", "argument-not-available", ["`mode`"]),
        ("rank.py:compute_scaled_advantage", "source-not-importable", ["_scale", "leading underscores"]),
        ("other.py:f", "file-not-found", ["other.py"]),
        ("compute_rank_advantage", "bad-source", ["'compute_rank_advantage'"]),
        ("no_such_library:losses.f", "source-not-importable", ["pip install no_such_library"]),
        ("vrl:compute_rloo_outcome_advantage", "source-not-importable", ["Did you mean 'verl'"]),
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
    check_style()


def test_class_of_torch_gets_constructor_options() -> None:
    files = port("my-port", "rank.py:ClippedLoss", "loss")

    assert "    ceiling: float | None = Field(default=None, " in files["options.py"]
    assert "token_level_loss" not in files["options.py"]
    assert "        original = ClippedLoss(\n            clip=params.clip,\n" in files["loss.py"]


@pytest.mark.parametrize(
    ("source", "bound"),
    [("mean_loss", None), ("ClippedLoss", "clamp(-MAX_LOG_RATIO"), ("sequence_loss", ".sum().abs() / MAX_LOG_RATIO")],
)
def test_loss_that_overflows_has_bounded_ratios(source: str, bound: str | None, capfd: Any) -> None:
    written = port("my-port", f"rank.py:{source}", "loss")["loss.py"]

    assert capfd.readouterr().err == ""  # The probe has called it with large ratios.
    assert bound in written if bound else "MAX_LOG_RATIO" not in written


def test_trainer_of_pairs_is_not_ported(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "my-port", "--kind", "loss", "--from", "rank.py:PairTrainer"]) == 2
    check_printed(capfd.readouterr().err, "argument-not-available", "`return_outputs`", "trl:RLOOTrainer")


def test_method_without_self_becomes_an_estimator() -> None:
    files = port("my-port", "rank.py:Maker.returns")

    assert "result = Maker.returns(\n        None,\n        rewards=batch.rewards,\n" in files["estimator.py"]
    assert "gamma: float = Field(default=1.0, " in files["options.py"]


def test_function_for_trl_sees_one_group() -> None:
    files = port("my-port", "rank.py:compute_group_advantages")

    assert 'level="trajectory"' in files["plugin.py"]
    assert (
        "rewards=torch.tensor(inputs.rewards[start:end]),\n            num_generations=end - start"
        in files["estimator.py"]
    )


def check_style() -> None:
    for command in (["check"], ["format", "--check"]):
        written = [sys.executable, "-m", "ruff", *command, "--no-cache", "--exclude", "original.py,rank.py,site", "."]
        finished = subprocess.run(written, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stdout


@pytest.mark.long
def test_functions_for_trl_and_openrlhf_pass_their_tests() -> None:
    port("my-group", "rank.py:compute_group_advantages")
    port("my-returns", "rank.py:Maker.returns")
    port("my-bounds", "rank.py:compute_bounded_advantage")
    for name, source in {"clip": "ClippedLoss", "mean": "mean_loss", "trainer": "MyTrainer"}.items():
        port(f"my-{name}", f"rank.py:{source}", "loss")

    assert "failed" not in run_tests("my-group", "my-returns", "my-bounds", "my-clip", "my-mean", "my-trainer")
    check_style()


@pytest.mark.long
def test_losses_of_trl_pass_their_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own, because TRL is in a directory without its requirements, which must not stay on the path."""
    conformance = str(Path(sys.prefix) / "conformance")
    assert Path(conformance, "trl").is_dir(), "TRL is missing: make install"
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    gmpo = "trl:experimental.gmpo.gmpo_trainer.GMPOTrainer"
    trainers = {"my-grpo": "trl:GRPOTrainer", "my-rloo": "trl:RLOOTrainer", "my-gmpo": gmpo}
    environ = os.environ | {"PYTHONPATH": conformance}
    for name, source in trainers.items():
        command = (sys.executable, "-m", "rllm", "plugins", "new", name, "--kind", "loss", "--from", source)
        finished = subprocess.run(command, check=True, env=environ, capture_output=True, text=True, timeout=400)
        assert "warning" not in finished.stderr

    assert "failed" not in run_tests(*trainers, path=conformance)
    check_style()


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "field", "hint"),
    [
        ("trl:GRPOTrainer", "epsilonn", "Did you mean 'epsilon'"),
        ("verl:compute_policy_loss_gspo", "clip_rati", "'clip_ratio'"),
    ],
)
def test_unknown_fields_are_errors_before_a_run(source: str, field: str, hint: str) -> None:
    environ = os.environ | {"PYTHONPATH": str(Path(sys.prefix) / "conformance")}
    new = (sys.executable, "-m", "rllm", "plugins", "new", "my-port", "--kind", "loss", "--from", source)
    subprocess.run(new, check=True, env=environ, capture_output=True, timeout=400)
    environ["PYTHONPATH"] += f"{os.pathsep}my-port/src"
    code = """
import sys, types, my_port.plugin
my_port.plugin.check(types.SimpleNamespace(config=dict.fromkeys(sys.argv[1:], 1)))
"""
    check = (sys.executable, "-c", code)

    subprocess.run(check, check=True, env=environ, timeout=100)
    finished = subprocess.run((*check, field), env=environ, capture_output=True, text=True, timeout=100)
    assert f"no field '{field}'" in finished.stderr
    assert hint in finished.stderr


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
    environ = os.environ | {"PYTHONPATH": "my-rank/src"}
    code = (sys.executable, "-c", "import my_rank.plugin; my_rank.plugin.check(None)")
    finished = subprocess.run(code, env=environ, capture_output=True, text=True, timeout=100)
    assert "library is not installed.\nhint: Install library: pip install library." in finished.stderr
