"""What the doctor says of GPUs, from machines that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from expecting import check_values

from rllm_backend_kit import machine as machine
from rllm_backend_kit.machine import GIB, Gpu, Machine, examine_machine, parse_gpus

ANSWER = """\
NVIDIA H100 80GB HBM3, 9.0, 81559, 80994, 580.95.05
Tesla V100-SXM2-16GB, 7.0, 16384, 4096, 580.95.05
"""
H100 = Gpu(name="NVIDIA H100", capability=(9, 0), total=80 * GIB, free=79 * GIB, driver="580.95.05")
TWO = Machine(gpus=(H100, H100), torch="2.11.0", cuda="13.0", visible=2, nccl="2.28.9")


def with_driver(version: str) -> tuple[Gpu, Gpu]:
    return (replace(H100, driver=version),) * 2


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


def test_the_drivers_answer_is_read() -> None:
    first, second = parse_gpus(ANSWER)
    assert (first.name, first.capability, first.driver) == ("NVIDIA H100 80GB HBM3", (9, 0), "580.95.05")
    assert (second.total, second.free) == (16 * GIB, 4 * GIB)
    assert parse_gpus("NVIDIA GB10, 12.1, [N/A], [N/A], 580.95.05\n")[0].total == 0


def test_machine_without_driver_can_be_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "NVIDIA_SMI", ("no-such-program",))
    found = machine.read_machine(("numpy", "no-such-package"))
    assert found.gpus == ()
    assert found.no_driver.startswith("nvidia-smi ")
    assert list(found.packages) == ["numpy"]


def test_message_of_failing_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "echo NVIDIA-SMI has failed.; exit 9"
    monkeypatch.setattr(machine, "NVIDIA_SMI", ("sh", "-c", said))
    assert machine.read_machine().no_driver.endswith(": NVIDIA-SMI has failed.")


OF_CPU = {"torch": "2.13.0+cpu", "cuda": None, "visible": 0, "nccl": None}
OLD = {"cuda": "12.8"}
COMMANDS = ("pip uninstall torch", "pip install --force-reinstall 'torch==2.13.0'")


USED = replace(H100, free=40 * GIB)


@pytest.mark.parametrize(
    ("changes", "label", "values"),
    [
        ({"gpus": (), "no_driver": "no nvidia-smi"}, "GPU: error[no-gpu]", ["no nvidia-smi", "docker run --gpus all"]),
        (OF_CPU, "torch: error[torch-without-cuda]", ["2.13.0+cpu", *COMMANDS]),
        ({"visible": 1}, "torch: warning[gpus-not-visible]", ["sees 1 of 2 "]),
        ({"visible": 0, "nccl": None}, "torch: error[gpus-not-visible]", ["sees 0 of 2 "]),
        ({"nccl": None}, "NCCL: error[no-nccl]", ["torch"]),
        ({"gpus": (H100,), "visible": 1, "nccl": None}, "", []),
        ({"gpus": (H100, USED)}, "GPU 1: warning[gpu-memory-in-use]", ["40.0 of 80.0 GiB", "`nvidia-smi`"]),
        ({"gpus": (replace(H100, capability=(7, 0)), H100)}, "GPU 0: warning[no-bfloat16]", ["7.0, ", "needs 8.0"]),
        ({"gpus": with_driver("570.86.15")}, "torch: error[old-driver]", ["570.86.15; ", "driver 580", "CUDA 12"]),
        (
            OLD | {"gpus": with_driver("470.82.01")},
            "torch: error[old-driver]",
            ["470.82.01; ", "525", "CUDA 11"],
        ),
        (OLD | {"gpus": with_driver("525.60.13")}, "", []),
        ({"cuda": "14.0"}, "", []),
    ],
)
def test_problem_is_told_with_its_remedy(changes: dict[str, Any], label: str, values: list[str]) -> None:
    found = [f"{subject}: {problem}" for subject, problem in _find_problems(replace(TWO, **changes)).items()]
    assert [problem.split(": ", 2)[:2] for problem in found] == ([label.split(": ")] if label else [])
    for problem in found:
        check_values(problem, *values)
