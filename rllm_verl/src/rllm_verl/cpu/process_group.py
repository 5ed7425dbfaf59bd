"""Process groups on a CPU: verl asks torch for ``cpu:gloo,<device>:<backend>``, where a device may stand only once."""

from __future__ import annotations

from functools import wraps

BACKEND = "cpu:gloo"


def register() -> None:
    """Let verl's workers make gloo groups. Must be called before the modules of its workers are imported."""
    # Imported here: the module asks for the platform, which has to be registered first.
    from verl.utils import distributed

    initialise = distributed.initialize_global_process_group_ray

    @wraps(initialise)
    def initialise_on_cpu(timeout_second: int | None = None, backend: str | None = None) -> None:
        initialise(timeout_second=timeout_second, backend=backend or BACKEND)

    distributed.initialize_global_process_group_ray = initialise_on_cpu
