"""GPU setup of this machine, as reported by NVIDIA's driver, torch and the installed packages."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
    """One device."""

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


def look(packages: Sequence[str] = ()) -> Machine:
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
        nccl=_nccl() if sees and torch.distributed.is_nccl_available() else None,
        nvcc=_nvcc(),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        packages={name: found for name in packages if (found := installed_version(name)) is not None},
    )


def installed_version(*distributions: str) -> str | None:
    """Return the version, without its build suffix, of the first installed package. None if none is installed."""
    for distribution in distributions:
        with suppress(PackageNotFoundError):
            return version(distribution).partition("+")[0]
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


def _nccl() -> str:
    import torch

    numbers: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, numbers))


def _nvcc() -> str | None:
    try:
        done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    return release[1] if release else None
