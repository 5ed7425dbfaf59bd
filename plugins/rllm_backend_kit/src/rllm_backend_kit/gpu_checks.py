"""Findings of `rllm plugins doctor --gpu` about a machine's GPUs, for all backends."""

from __future__ import annotations

from collections.abc import Iterator

from rllm_backend_kit.machine import Gpu, Machine
from rllm_core.contracts.backend import Finding

GIB = 1 << 30
DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver of each major version of CUDA, of which all minor versions run with it."""
BFLOAT16 = (8, 0)
"""Minimum compute capability for bfloat16."""
MOSTLY_FREE = 0.9
"""Minimum share of free memory on a device that no other process uses. The driver reserves the rest."""


def examine_machine(machine: Machine) -> Iterator[Finding]:
    """Check the driver, torch's build, NCCL, and the memory of each device."""
    if machine.no_driver:
        yield Finding(
            code="no-gpu",
            severity="error",
            subject="GPU",
            problem=f"NVIDIA's driver finds no GPU: {machine.no_driver}",
            remedy="run this on a machine with GPUs. In a container, use `docker run --gpus all`",
        )
    yield from _torch(machine)
    yield from _nccl(machine)
    for number, gpu in enumerate(machine.gpus):
        yield from _device(number, gpu)


def _torch(machine: Machine) -> Iterator[Finding]:
    if machine.cuda is None:
        yield Finding(
            code="torch-without-cuda",
            severity="error",
            subject="torch",
            problem=f"{machine.torch} is a build for CPUs",
            # vLLM asks for one version of torch, and would replace another.
            remedy="pip uninstall torch, then install vLLM, which brings the torch that it needs: 'rllm-verl[vllm]' or "
            f"'rllm-vllm[gpu]'. Without vLLM: pip install --force-reinstall 'torch=={plain(machine.torch)}' "
            "--index-url https://pypi.org/simple",
        )
        return
    drivers = [gpu.driver for gpu in machine.gpus]
    oldest = DRIVERS.get(major(machine.cuda))
    if drivers and oldest is not None and major(drivers[0]) < oldest:
        fitting = max((cuda for cuda, driver in DRIVERS.items() if driver <= major(drivers[0])), default=None)
        build = f", or a build of torch for CUDA {fitting}: https://pytorch.org/get-started" if fitting else ""
        yield Finding(
            code="old-driver",
            severity="error",
            subject="torch",
            problem=f"{machine.torch} is built with CUDA {machine.cuda}, which needs driver {oldest}, but the driver "
            f"is {drivers[0]}",
            remedy=f"install driver {oldest} or newer{build}",
        )
    elif machine.visible < len(machine.gpus):
        yield Finding(
            code="gpus-not-visible",
            severity="error" if machine.visible == 0 else "warning",
            subject="torch",
            problem=f"sees {machine.visible} of {len(machine.gpus)} GPUs",
            remedy="check CUDA_VISIBLE_DEVICES. `python -c 'import torch; torch.cuda.init()'` prints the cause",
        )


def _nccl(machine: Machine) -> Iterator[Finding]:
    if machine.visible > 1 and machine.nccl is None:
        yield Finding(
            code="no-nccl",
            severity="error",
            subject="NCCL",
            problem="torch was built without it, but GPUs communicate through it",
            remedy="install torch from PyPI or https://download.pytorch.org/whl",
        )
    elif machine.nccl is not None:
        yield _note("NCCL", f"version {machine.nccl}, of torch {machine.torch} with CUDA {machine.cuda}")


def _device(number: int, gpu: Gpu) -> Iterator[Finding]:
    subject = f"GPU {number}"
    amount = f"{gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free"
    yield _note(subject, f"{gpu.name}, {amount}, driver {gpu.driver}")
    if gpu.free < MOSTLY_FREE * gpu.total:
        yield Finding(
            code="gpu-memory-in-use",
            severity="warning",
            subject=subject,
            problem=f"a different process uses its memory: {amount}",
            remedy="run `nvidia-smi` to find the process, for example one of a killed run",
        )
    if gpu.capability < BFLOAT16:
        yield Finding(
            code="no-bfloat16",
            severity="warning",
            subject=subject,
            problem=f"{gpu.name} has compute capability {gpu.capability[0]}.{gpu.capability[1]}, and bfloat16 needs "
            f"{BFLOAT16[0]}.{BFLOAT16[1]}",
            remedy="train in float32 or float16; flash-attn does not run there",
        )


def _note(subject: str, what: str) -> Finding:
    return Finding(code="nothing-wrong", severity="note", subject=subject, problem=what, remedy="")


def major(version: str) -> int:
    """12 of "12.8"."""
    return int(version.partition(".")[0])


def plain(version: str | None) -> str:
    """2.13.0 of "2.13.0+cpu"."""
    return (version or "").partition("+")[0]
