"""vLLM under verl with other weights than the workers' stops the run at the sync, with the name of the fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from verl_weights import LORA, OF_ADAPTERS, OF_ALL_WEIGHTS, Expected, Values, checked_backend

if TYPE_CHECKING:
    from rllm_verl.session import Session


def workers(session: Session) -> list[Any]:
    return list(session.workers.group.workers)


def fault_of_worker() -> Callable[[Any], None]:
    """Return a function for a worker's process, which cannot import this module."""

    def record(worker: Any) -> None:
        tensors, _ = worker.actor.engine.get_per_tensor_param(base_sync_done=True)
        history = [{name: tensor.clone() for name, tensor in tensors}]
        update = worker.rollout.update_weights
        worker._fault = None

        async def update_with_fault(weights: Any, *rest: Any, **options: Any) -> None:
            history.append({name: tensor.clone() for name, tensor in weights})
            sent = history[-1] if worker._fault is None else worker._fault(history)
            await update(iter(sent.items()), *rest, **options)

        worker.rollout.update_weights = update_with_fault

    return record


@pytest.mark.filterwarnings("default")  # of the libraries, which this process imports too
@pytest.mark.parametrize(
    ("values", "faults"), [({}, OF_ALL_WEIGHTS), (LORA, OF_ADAPTERS)], ids=["all weights", "LoRA merged"]
)
def test_faults_of_vllm_are_named(directory: Path, values: Values, faults: Mapping[str, Expected]) -> None:
    values = {"rllm.profile": "cpu_vllm", "actor_rollout_ref.model.path": str(directory), **values}
    with checked_backend(values, workers, fault_of_worker()) as backend:
        backend.check_faults(faults, number=0)
