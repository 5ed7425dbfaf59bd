"""Servers for CPUs whose weights differ from the workers' stop the run at their sync, with the name of the fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from verl_weights import APART, LORA, OF_ADAPTERS, OF_ALL_WEIGHTS, OF_OWN_HEADS, Values, checked_backend

if TYPE_CHECKING:
    from rllm_verl.session import Session

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(600)]


def servers(session: Session) -> list[Any]:
    return list(session.servers._manager.server_handles)


def fault_of_server() -> Callable[[Any], None]:
    """Return a function for a server's process, which cannot import this module. The server's head is not tied."""

    def record(server: Any) -> None:
        import torch

        from rllm_verl.cpu import weights

        history = [{name: tensor.clone() for name, tensor in server._model.state_dict().items()}]
        write = weights.StagedWeights.write
        server._model.lm_head.weight = torch.nn.Parameter(server._model.lm_head.weight.detach().clone())
        server._fault = None

        def write_with_fault(staged: Any) -> None:
            history.append(dict(staged._staged))
            if server._fault is not None:
                staged._staged = server._fault(history)
            write(staged)

        weights.StagedWeights.write = write_with_fault

    return record


@pytest.mark.smoke
def test_faults_of_one_server_of_two_are_named() -> None:
    with checked_backend({"trainer.n_gpus_per_node": 2}, servers, fault_of_server()) as backend:
        backend.check_faults(OF_ALL_WEIGHTS | OF_OWN_HEADS, number=1)


@pytest.mark.long
@pytest.mark.parametrize("place", [{}, APART], ids=["colocated", "apart"])
def test_faults_of_adapters_are_named(place: Values) -> None:
    with checked_backend({**place, **LORA}, servers, fault_of_server()) as backend:
        backend.check_faults(OF_ADAPTERS, number=0)
