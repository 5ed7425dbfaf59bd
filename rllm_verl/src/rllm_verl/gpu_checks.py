"""verl's checks in `rllm plugins doctor --gpu`: package versions, flash attention and shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rllm_backend_kit.gpu_checks import GIB, examine_machine, major
from rllm_backend_kit.machine import Machine, look
from rllm_core.contracts.finding import Finding
from rllm_verl.vllm_pin import GOES_WITH, INSTALL, PINNED

FLASH = "flash-attn"
NEWEST_FLASH = "2.8.3"
"""Built against torch 2.11."""
LOOKED_AT = ("verl", "vllm", "torch", "transformers", "ray", FLASH)
SUBJECT = "backend verl on GPUs"
SHARED_MEMORY = 8 * GIB
"""Free bytes of /dev/shm that Ray's store and the weight transfer to vLLM need. Docker's default is 64 MiB."""


def examine_gpus() -> Iterable[Finding]:
    """Return the findings for `BackendPlugin.examine_gpus`."""
    machine = look(LOOKED_AT)
    return [*examine_machine(machine), *examine_verl(machine)]


def examine_verl(machine: Machine) -> Iterator[Finding]:
    """Yield findings about the backend's requirements in addition to a working torch."""
    yield from _versions(machine)
    yield from _flash(machine)
    yield from _shared_memory(machine)


def _versions(machine: Machine) -> Iterator[Finding]:
    vllm = machine.packages.get("vllm")
    if vllm is None:
        yield Finding(
            code="missing-package",
            severity="error",
            subject=SUBJECT,
            problem="vllm is not installed, but the rollout servers need it",
            remedy=INSTALL,
        )
        return
    for name, wanted in {"vllm": PINNED, **GOES_WITH}.items():
        found = machine.packages.get(name)
        if found != wanted:
            yield Finding(
                code="wrong-version",
                severity="warning",
                subject=SUBJECT,
                problem=f"{name} is {found or 'not installed'}, but verl needs {wanted}",
                remedy=INSTALL,
            )


def _flash(machine: Machine) -> Iterator[Finding]:
    if (found := machine.packages.get(FLASH)) is not None:
        yield Finding(code="nothing-wrong", severity="note", subject=FLASH, problem=f"version {found}", remedy="")
        return
    yield Finding(
        code="no-flash-attention",
        severity="warning",
        subject=FLASH,
        problem="it is not installed, so attention is slower and a sequence cannot be split over GPUs",
        remedy=f"{_compiler(machine)}pip install setuptools wheel packaging ninja psutil && "
        f"pip install '{FLASH}=={NEWEST_FLASH}' --no-build-isolation; or go without: "
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    )


def _compiler(machine: Machine) -> str:
    """Return the steps that are needed before flash-attn can be compiled."""
    if machine.cuda is None:
        return "install torch with CUDA, then "
    if machine.nvcc is None:
        return f"install nvcc (the CUDA toolkit {machine.cuda}), then "
    if major(machine.nvcc) != major(machine.cuda):
        return f"install nvcc of CUDA {machine.cuda} (this one is of {machine.nvcc}), then "
    return ""


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    free = machine.shared_memory
    if free is not None and free < SHARED_MEMORY:
        yield Finding(
            code="small-shared-memory",
            severity="warning",
            subject="/dev/shm",
            problem=f"only {free / GIB:.2f} GiB are free for Ray's store and the weight transfer to vLLM",
            remedy=f"`docker run --shm-size={2 * SHARED_MEMORY // GIB}g`, or `mount -o remount,size=…` of /dev/shm",
        )
