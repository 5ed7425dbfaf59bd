"""Errors that are detected before anything is loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.inspection.doctor import examine
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings
from rllm_core.plugins.registry import Registry
from rllm_verl import installed
from rllm_verl.attention import sequence_parallel_size
from rllm_verl.checks import check_config

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"


@pytest.mark.long
def test_what_the_cpu_profile_says_passes(run: Any) -> None:
    check_config(run("rllm.profile=cpu").backend_config)


@pytest.mark.parametrize(
    ("word", "code", "values"),
    [
        (f"{ACTOR}.ppo_epochs=0", "wrong-value", [f"`{ACTOR}.ppo_epochs`", 0]),
        ("trainer.nnodes=0", "wrong-value", ["`trainer.nnodes`", 0]),
        (f"{ACTOR}.optim.lr=-1.0", "wrong-value", [f"`{ACTOR}.optim.lr`", -1.0]),
        ("rllm.algorithm.loss_agg_mode=prompt-mean", "wrong-value", [f"`{ACTOR}.loss_agg_mode`"]),
        (f"{ACTOR}.use_dynamic_bsz=false", "missing-key", ["ppo_micro_batch_size_per_gpu`"]),
        (f"{ROLLOUT}.mode=sync", "wrong-value", [f"`{ROLLOUT}.mode`", "async"]),
        (
            f"{ROLLOUT}.tensor_model_parallel_size=2",
            "unsupported-parallelism",
            ["tensor_model_parallel_size`", "1 GPU"],
        ),
        ("actor_rollout_ref.model.path=./no/such/model", "model-not-found", ["./no/such/model"]),
    ],
)
def test_values_that_cannot_work_are_refused(run: Any, word: str, code: str, values: list[object]) -> None:
    composed = run("rllm.profile=cpu", word)
    with expect_error(ConfigError, code, *values):
        check_config(composed.backend_config)


FSDP2 = "fsdp_config.ulysses_sequence_parallel_size"


@pytest.mark.long
@pytest.mark.parametrize(
    "key",
    [f"{ACTOR}.ulysses_sequence_parallel_size", f"{ACTOR}.{FSDP2}", f"actor_rollout_ref.ref.{FSDP2}"],
)
def test_sequence_parallelism_needs_flash_attention(run: Any, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """With sdpa, verl's log-probs are wrong by 0.2 in the mean, and nothing says so."""
    values = (f"`{key}`", 2, f"`{ATTENTION}`", "sdpa", f"{key}=1")
    with expect_error(ConfigError, "unsupported-attention", *values):
        check_config(run("rllm.profile=cpu", f"{key}=2").backend_config)
    flash = ("rllm.profile=cpu", f"{key}=2", f"{ATTENTION}=flash_attention_2")
    monkeypatch.setattr("rllm_verl.attention.find_spec", lambda name: name)
    check_config(run(*flash).backend_config)
    with expect_error(ConfigError, "unsupported-attention", f"`{key}`", "use_remove_padding=true"):
        check_config(run(*flash, "actor_rollout_ref.model.use_remove_padding=false").backend_config)


def test_what_fits_a_pass_grows_with_the_gpus_that_share_it(run: Any) -> None:
    """verl takes the number from either key."""
    for key in ("ulysses_sequence_parallel_size", FSDP2):
        actor = run("rllm.profile=cpu", f"{ACTOR}.{key}=2").backend_config.native()["actor_rollout_ref"]["actor"]
        assert sequence_parallel_size(actor) == 2


def test_flash_attention_that_is_not_installed_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_verl.attention.find_spec", lambda name: None)
    with expect_error(ConfigError, "missing-package", "flash-attn", f"{ATTENTION}=sdpa"):
        check_config(run("rllm.profile=cpu", f"{ATTENTION}=flash_attention_2").backend_config)


def test_a_directory_without_a_model_is_refused(run: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"contains no config\.json"):
        check_config(run("rllm.profile=cpu", f"actor_rollout_ref.model.path={tmp_path}").backend_config)


def test_a_rollout_server_that_is_not_installed_says_what_installs_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllm_verl.checks.find_spec", lambda name: None)
    with expect_error(ConfigError, "missing-package", "vllm", "rllm-verl[vllm]", "--profile cpu"):
        check_config(run().backend_config)


@pytest.mark.parametrize(("found", "code"), [("0.8.0", "wrong-version"), (None, "missing-package")])
def test_verl_missing_or_of_another_version_is_one_clear_error(
    run: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch, found: str | None, code: str
) -> None:
    monkeypatch.setattr(installed, "installed_version", lambda name: found)
    with expect_error(ConfigError, code, "verl 0.9.1", found or "verl", "pip install 'verl==0.9.1'"):
        run()


def test_the_doctor_says_which_verl_is_needed(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed_version", lambda name: "0.8.0")
    only_verl = Registry()
    record = dataclasses.replace(registry.get("backend", "verl").plugin, load=lambda: object)
    only_verl.add(record, distribution="rllm-verl")
    (finding,) = examine(only_verl)
    assert finding.severity == "error"
    assert "needs verl 0.9.1" in finding.problem
    assert finding.remedy == "pip install 'verl==0.9.1'"


@pytest.mark.long
def test_composing_does_not_import_verl() -> None:
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from rllm.config.compose import compose\n"
        "from rllm.config.layers import layers_from_overrides\n"
        "from rllm_core.plugins.registry import Registry\n"
        "compose(Registry.load(), layers_from_overrides(['rllm/backend=verl', 'rllm.profile=cpu']))\n"
        "print(sorted({'verl', 'ray', 'torch', 'tensordict', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "words", [(f"{ACTOR}.use_kl_loss=true",), (f"{ACTOR}.use_kl_loss=false", "rllm.algorithm.kl_beta=0.1")]
)
def test_use_kl_loss_against_kl_beta_stands_with_a_warning(
    run: Any, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    check_config(run("rllm.profile=cpu", *words).backend_config)
    check_values(capsys.readouterr().err, "use_kl_loss", "kl_beta")
