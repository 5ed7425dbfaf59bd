"""What the doctor says of GPUs, from machines that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from expecting import check_printed, check_values

from rllm_backend_kit import machine as looking
from rllm_backend_kit.gpu_checks import GIB, examine_machine
from rllm_backend_kit.machine import Gpu, Machine, parse_gpus

ANSWER = """\
NVIDIA H100 80GB HBM3, 9.0, 81559, 80994, 580.95.05
Tesla V100-SXM2-16GB, 7.0, 16384, 4096, 580.95.05
"""
H100 = Gpu(name="NVIDIA H100", capability=(9, 0), total=80 * GIB, free=79 * GIB, driver="580.95.05")
TWO = Machine(gpus=(H100, H100), torch="2.11.0", cuda="13.0", visible=2, nccl="2.28.9")


def _find_problems(machine: Machine) -> Mapping[str, str]:
    """Errors and warnings by subject, with what to do."""
    return {
        each.subject: f"{each.severity}[{each.code}]: {each.problem}; {each.remedy}"
        for each in examine_machine(machine)
        if each.severity != "note"
    }


def test_nothing_is_wrong_with_two_free_gpus() -> None:
    assert not _find_problems(TWO)
    notes = [f"{each.subject}: {each.problem}" for each in examine_machine(TWO)]
    assert notes == [
        "NCCL: version 2.28.9, of torch 2.11.0 with CUDA 13.0",
        "GPU 0: NVIDIA H100, 79.0 of 80.0 GiB free, driver 580.95.05",
        "GPU 1: NVIDIA H100, 79.0 of 80.0 GiB free, driver 580.95.05",
    ]


def test_a_machine_without_a_driver_says_what_was_looked_at() -> None:
    said = _find_problems(Machine(no_driver="nvidia-smi is missing", torch="2.13.0+cpu"))
    check_printed(said["GPU"], "no-gpu", "nvidia-smi is missing", "docker run --gpus all")


def test_a_build_of_torch_for_cpus_is_named_with_the_lines_that_replace_it() -> None:
    said = _find_problems(replace(TWO, torch="2.13.0+cpu", cuda=None, visible=0, nccl=None))
    commands = ("pip uninstall torch", "pip install --force-reinstall 'torch==2.13.0'")
    check_printed(said["torch"], "torch-without-cuda", "2.13.0+cpu", *commands)


@pytest.mark.parametrize(
    ("cuda", "driver", "values"),
    [
        ("13.0", "570.86.15", ["570.86.15; ", "driver 580", "CUDA 12"]),
        ("12.8", "470.82.01", ["470.82.01; ", "driver 525", "CUDA 11"]),
        ("12.8", "525.60.13", []),
        ("14.0", "580.95.05", []),
    ],
)
def test_a_driver_that_is_too_old_for_torchs_cuda_is_an_error(cuda: str, driver: str, values: list[str]) -> None:
    said = _find_problems(replace(TWO, cuda=cuda, gpus=(replace(H100, driver=driver),) * 2))
    assert bool(values) == ("torch" in said)
    if values:
        check_printed(said["torch"], "old-driver", *values)


def test_gpus_that_torch_does_not_see_are_counted() -> None:
    assert _find_problems(replace(TWO, visible=1))["torch"].startswith("warning[gpus-not-visible]: sees 1 of 2 ")
    assert _find_problems(replace(TWO, visible=0, nccl=None))["torch"].startswith(
        "error[gpus-not-visible]: sees 0 of 2 "
    )


def test_several_gpus_need_nccl() -> None:
    check_printed(_find_problems(replace(TWO, nccl=None))["NCCL"], "no-nccl", "torch")
    assert "NCCL" not in _find_problems(replace(TWO, gpus=(H100,), visible=1, nccl=None))


def test_memory_that_somebody_else_has_is_said_of_its_device() -> None:
    said = _find_problems(replace(TWO, gpus=(H100, replace(H100, free=40 * GIB))))
    assert list(said) == ["GPU 1"]
    assert said["GPU 1"].startswith("warning[gpu-memory-in-use]: ")
    check_values(said["GPU 1"], "40.0 of 80.0 GiB", "`nvidia-smi`")


def test_an_old_device_has_no_bfloat16() -> None:
    assert (
        "7.0, and bfloat16 needs 8.0" in _find_problems(replace(TWO, gpus=(replace(H100, capability=(7, 0)),)))["GPU 0"]
    )


def test_the_drivers_answer_is_read() -> None:
    first, second = parse_gpus(ANSWER)
    assert (first.name, first.capability, first.driver) == ("NVIDIA H100 80GB HBM3", (9, 0), "580.95.05")
    assert (second.total, second.free) == (16 * GIB, 4 * GIB)
    assert parse_gpus("NVIDIA GB10, 12.1, [N/A], [N/A], 580.95.05\n")[0].total == 0


def test_this_machine_can_be_looked_at_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "NVIDIA_SMI", ("no-such-program",))
    found = looking.look(("numpy", "no-such-package"))
    assert found.gpus == ()
    assert found.no_driver.startswith("nvidia-smi ")
    assert list(found.packages) == ["numpy"]


def test_what_a_driver_says_that_fails_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "echo NVIDIA-SMI has failed.; exit 9"
    monkeypatch.setattr(looking, "NVIDIA_SMI", ("sh", "-c", said))
    assert looking.look().no_driver.endswith(": NVIDIA-SMI has failed.")
