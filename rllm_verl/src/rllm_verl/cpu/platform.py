"""verl's platform ``cpu``: verl's accelerator interface for a machine without an accelerator, with gloo groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from verl.plugin.platform import PlatformBase, PlatformRegistry

NAME = "cpu"
BACKEND = "cpu:gloo"
"""verl requests ``cpu:gloo,<device>:<backend>``, but torch accepts each device only once."""


def _do_nothing(*_: object, **__: object) -> None:
    """Do nothing, because a CPU has no such state."""


class CpuDevice(ModuleType):
    """`torch.cpu` with the functions of `torch.cuda` that verl calls and `torch.cpu` lacks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: object = None) -> str:
        return NAME

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return the machine's free and total memory in bytes."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    # torch does not count its CPU allocations and has no cache for them.
    def memory_allocated(self, device: object = None) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    empty_cache = ipc_collect = reset_peak_memory_stats = set_per_process_memory_fraction = _do_nothing


class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """verl's platform for a CPU, selected only by ``VERL_PLATFORM=cpu``."""

    device_name = NAME
    vendor_name = NAME
    device_module = CpuDevice("rllm_verl.cpu.device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False, so that verl never selects it automatically.

        Otherwise verl would train on a GPU cluster's CPUs if the head node has no GPU.
        """
        return False

    def current_device(self) -> str:
        """Return a device name instead of an index, because verl passes it to `Tensor.to`."""
        return NAME

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "RLLM_VERL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        """Return ``GPU``. verl places one worker per Ray GPU, so Ray is started with one logical GPU per worker."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    set_device = synchronize = set_allocator_settings = empty_cache = _do_nothing
    profiler_start = profiler_stop = cudart = _do_nothing


def register() -> None:
    """Register the platform by its name, and make verl's workers create gloo groups.

    Call this before the modules of verl's workers are imported.
    """
    PlatformRegistry.register(platform=NAME)(CpuPlatform)
    # Imported here because the module reads the platform, which must be registered first.
    from verl.utils import distributed

    initialize = distributed.initialize_global_process_group_ray

    @wraps(initialize)
    def initialize_on_cpu(timeout_second: int | None = None, backend: str | None = None) -> None:
        initialize(timeout_second=timeout_second, backend=backend or BACKEND)

    distributed.initialize_global_process_group_ray = initialize_on_cpu
