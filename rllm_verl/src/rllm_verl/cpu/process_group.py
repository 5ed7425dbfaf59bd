"""Process groups on a CPU. verl requests ``cpu:gloo,<device>:<backend>``, but torch accepts each device only once."""

from __future__ import annotations

from functools import wraps

BACKEND = "cpu:gloo"


def register() -> None:
    """Make verl's workers create gloo groups. Call this before the modules of verl's workers are imported."""
    # Imported here because the module reads the platform, which must be registered first.
    from verl.utils import distributed

    initialize = distributed.initialize_global_process_group_ray

    @wraps(initialize)
    def initialize_on_cpu(timeout_second: int | None = None, backend: str | None = None) -> None:
        initialize(timeout_second=timeout_second, backend=backend or BACKEND)

    distributed.initialize_global_process_group_ray = initialize_on_cpu
