"""GPU setup of this machine, as reported by NVIDIA's driver, torch and the installed packages, and findings about it.

`rllm plugins doctor --gpu` prints the findings.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rllm_core.contracts.backend import Finding

NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=name,compute_cap,memory.total,memory.free,driver_version",
    "--format=csv,noheader,nounits",
)
ANSWER = 30.0
"""Seconds that a program has to answer."""
MIB = 1 << 20
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as the driver reports it."""

    name: str
    capability: tuple[int, int]
    """NVIDIA's compute capability: (9, 0) is Hopper."""
    total: int
    """Bytes of memory."""
    free: int
    """Bytes of memory that no process has."""
    driver: str
    """Version of NVIDIA's driver."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """GPU setup of this machine. A field is None if the machine does not have it."""

    gpus: tuple[Gpu, ...] = ()
    """GPUs in the driver's order."""
    no_driver: str = ""
    """Why the driver does not answer. Empty if it answers."""
    torch: str | None = None
    """Version of torch."""
    cuda: str | None = None
    """CUDA that torch was built with; None of a build for CPUs."""
    visible: int = 0
    """GPUs that torch sees."""
    nccl: str | None = None
    """NCCL that torch was built with."""
    nvcc: str | None = None
    """CUDA of the compiler `nvcc`, which packages without a wheel are built with."""
    shared_memory: int | None = None
    """Free bytes of /dev/shm."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of those that were asked for and are installed."""


def read_machine(packages: Sequence[str] = ()) -> Machine:
    """Ask the driver, torch and the package metadata. Takes seconds and no memory of a device."""
    import torch

    gpus, no_driver = _gpus()
    cuda = torch.version.cuda
    sees = cuda is not None and torch.cuda.is_available()
    return Machine(
        gpus=gpus,
        no_driver=no_driver,
        torch=torch.__version__,
        cuda=cuda,
        visible=torch.cuda.device_count() if sees else 0,
        nccl=_nccl_version() if sees and torch.distributed.is_nccl_available() else None,
        nvcc=_nvcc_version(),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        packages={name: found for name in packages if (found := installed_version(name)) is not None},
    )


def installed_version(*distributions: str) -> str | None:
    """Return the version, without its build suffix, of the first installed package. None if none is installed."""
    from importlib import metadata

    for distribution in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution).partition("+")[0]
    return None


def parse_gpus(answer: str) -> tuple[Gpu, ...]:
    """The devices in what `NVIDIA_SMI` prints. Numbers that a device does not have ("[N/A]") are 0."""
    return tuple(_gpu(*(part.strip() for part in line.split(","))) for line in answer.splitlines() if line.strip())


def _gpu(name: str, capability: str, total: str, free: str, driver: str) -> Gpu:
    major, _, minor = capability.partition(".")
    return Gpu(
        name=name,
        capability=(_number(major), _number(minor)),
        total=_number(total) * MIB,
        free=_number(free) * MIB,
        driver=driver,
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """The devices, and why there are none."""
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=ANSWER, check=False)
    except FileNotFoundError:
        return (), "nvidia-smi is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi: {error}"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return (), f"nvidia-smi says: {said[0] if said else f'exit code {done.returncode}'}"
    gpus = parse_gpus(done.stdout)
    return gpus, "" if gpus else "nvidia-smi lists no device"


def _nccl_version() -> str:
    import torch

    numbers: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, numbers))


def _nvcc_version() -> str | None:
    try:
        done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    return release[1] if release else None


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
    yield from _check_torch(machine)
    yield from _check_nccl(machine)
    for number, gpu in enumerate(machine.gpus):
        yield from _check_device(number, gpu)


def _check_torch(machine: Machine) -> Iterator[Finding]:
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


def _check_nccl(machine: Machine) -> Iterator[Finding]:
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


def _check_device(number: int, gpu: Gpu) -> Iterator[Finding]:
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
    """Return the first number of a version, for example 12 of "12.8"."""
    return int(version.partition(".")[0])


def plain(version: str | None) -> str:
    """Return the version without its build suffix, for example 2.13.0 of "2.13.0+cpu"."""
    return (version or "").partition("+")[0]
