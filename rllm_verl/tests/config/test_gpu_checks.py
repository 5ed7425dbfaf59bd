"""Output of the doctor about verl on GPUs, for made-up machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from expecting import check_values

from rllm_backend_kit.machine import GIB, Machine
from rllm_core.plugins.registry import Registry
from rllm_verl.installed import FLASH, PINNED, PINNED_WITH, examine_verl

READY = Machine(
    torch="2.11.0",
    cuda="13.0",
    nvcc="13.0",
    visible=8,
    shared_memory=64 * GIB,
    packages={"verl": "0.9.1", "vllm": PINNED, **PINNED_WITH, FLASH: "2.8.3"},
)


def _with(packages: Mapping[str, str | None]) -> Machine:
    together = READY.packages | packages
    return replace(READY, packages={name: version for name, version in together.items() if version is not None})


def _find_problems(machine: Machine) -> list[str]:
    return [
        f"{each.severity}[{each.code}]: {each.problem}; {each.remedy}"
        for each in examine_verl(machine)
        if each.severity != "note"
    ]


def test_versions_that_go_together_are_fine() -> None:
    assert not _find_problems(READY)


def test_missing_vllm_has_an_install_command() -> None:
    (said,) = _find_problems(_with({"vllm": None}))
    assert said.startswith("error[missing-package]: vllm ")
    assert said.endswith("; pip install 'rllm-verl[vllm]'")


@pytest.mark.parametrize("name", ["vllm", "torch", "transformers"])
def test_each_version_that_is_not_verls_is_named(name: str) -> None:
    (said,) = _find_problems(_with({name: "9.9.9"}))
    wanted = {"vllm": PINNED, **PINNED_WITH}[name]
    assert said.startswith(f"warning[wrong-version]: {name} ")
    check_values(said, "9.9.9", wanted, "; pip install 'rllm-verl[vllm]'")


@pytest.mark.parametrize(
    ("cuda", "nvcc", "first"),
    [
        ("13.0", "13.0", "pip install setuptools"),
        ("13.0", None, "CUDA toolkit 13.0"),
        ("13.0", "12.4", "12.4"),
        (None, None, "torch"),
    ],
)
def test_flash_attention_needs_compiler_of_torch_cuda(cuda: str | None, nvcc: str | None, first: str) -> None:
    (said,) = _find_problems(replace(_with({FLASH: None}), cuda=cuda, nvcc=nvcc))
    assert said.startswith("warning[no-flash-attention]: ")
    remedy = said.partition("; ")[2]
    build = "pip install 'flash-attn==2.8.3' --no-build-isolation"
    check_values(remedy, first, build, "attn_implementation=sdpa")
    assert remedy.index(first) < remedy.index(build)


def test_dockers_shared_memory_is_too_small() -> None:
    (said,) = _find_problems(replace(READY, shared_memory=64 << 20))
    assert said.startswith("warning[small-shared-memory]: ")
    check_values(said, "0.06 GiB", "docker run --shm-size=16g")
    assert not _find_problems(replace(READY, shared_memory=None))


def test_the_doctor_asks_the_backend(registry: Registry) -> None:
    examine = registry.get("backend", "verl").plugin.examine_gpus
    assert examine is not None
    assert FLASH in {finding.subject for finding in examine()}
