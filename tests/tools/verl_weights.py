"""A backend `verl` whose weight syncs are checked and can have faults, and the error that each fault must raise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import ray
import weight_faults
from weight_faults import (
    GATE,
    RUN,
    UP,
    Fault,
    apply_twice,
    cast,
    make_check,
    omit_shard,
    send_base,
    send_earlier,
    send_gate_twice,
)

from rllm.config.compose import compose
from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm_core.contracts.backend import RunContext
from rllm_core.errors import BackendError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit.session import BackendSession
from rllm_verl.backend import VerlBackend

if TYPE_CHECKING:
    from rllm_verl.session import Session

Values = Mapping[str, Any]
LORA: Values = {"actor_rollout_ref.model.lora_rank": 4, "actor_rollout_ref.model.lora.merge": True}
APART: Values = {"actor_rollout_ref.rollout.nnodes": 1}
FaultOfProcess = Callable[[Any], None]
"""A function for a process that passes weights on. Its object then applies the fault `_fault` if that is not None."""
Expected = tuple[Fault, str, str]
"""A fault, the end of the error's code, and a part of its message."""


class CheckedBackend:
    """A started backend whose weight syncs are checked."""

    def __init__(self, values: Values, handles: Callable[[Session], list[Any]], record: FaultOfProcess) -> None:
        """Start. `handles` are the Ray actors in which `record` is called."""
        for module in (weight_faults, sys.modules[__name__]):
            ray.cloudpickle.register_pickle_by_value(module)
        settings = {"rllm.backend": "verl", "rllm.profile": "cpu", "actor_rollout_ref.actor.optim.lr": 1e-2}
        registry = Registry.load()
        layers: list[Layer] = [layer_from_keys({**settings, **values}, "the test", Tier.USER)]
        composed = compose(registry, layers)
        loss = choose(registry, "loss", "ppo", "the test")
        run = RunContext(config=composed.config, backend_config=composed.backend_config, seed=0, total_steps=100)
        self.session = BackendSession(VerlBackend, run, loss)
        try:
            backend, check = self.session.backend, make_check()
            assert isinstance(backend, VerlBackend)
            self.handles = handles(backend._require_session())
            self.session.ask(check.start(backend.weight_comparison()))
            for handle in self.handles:
                ray.get(handle.__ray_call__.remote(record))
            self.session.backend = check.wrap_backend(backend, RUN)
        except BaseException:
            self.session.close()
            raise

    def step(self) -> None:
        self.session.update(advantage=1.0)

    def step_with_fault(self, fault: Fault, number: int) -> str:
        """Apply a fault in one process, and return the code and the message of the error that stops the run."""
        handle = self.handles[number]
        ray.get(handle.__ray_call__.remote(set_fault(fault)))
        try:
            with pytest.raises(BackendError) as raised:
                self.step()
        finally:
            ray.get(handle.__ray_call__.remote(set_fault(None)))
        return f"{raised.value.code}: {raised.value.message}"

    def check_faults(self, faults: Mapping[str, Expected], number: int) -> None:
        """Check that each fault is named at its sync, for the rollout server with this number."""
        for fault, code, text in faults.values():
            found = self.step_with_fault(fault, number)
            start = f"sampler-{code}: After weight sync {self.session.updates}, rollout server {number} "
            assert found.startswith(start), found
            assert text in found
            self.step()  # the next sync repairs the weights


def set_fault(fault: Fault | None) -> FaultOfProcess:
    def set_fault_of_process(process: Any) -> None:
        process._fault = fault

    return set_fault_of_process


@contextmanager
def checked_backend(
    values: Values, handles: Callable[[Session], list[Any]], record: FaultOfProcess
) -> Iterator[CheckedBackend]:
    """Start a backend, and make two steps without a fault."""
    backend = CheckedBackend(values, handles, record)
    try:
        backend.step()
        backend.step()
        yield backend
    finally:
        backend.session.close()


def omit_head(correct: list[Any]) -> Any:
    return {name: tensor for name, tensor in correct[-1].items() if name != "lm_head.weight"}


OF_ALL_WEIGHTS: dict[str, Expected] = {
    "gate matrix sent twice": (send_gate_twice, "tensors-differ", f"{UP} has the values of {GATE}."),
    "shard missing": (omit_shard, "tensors-differ", "tensors differ: model.layers.1."),
    "cast to bfloat16": (cast, "weights-faulty", "has the weights rounded to bfloat16."),
    "sync of step k - 1": (send_earlier, "weights-stale", "is unchanged since sync "),
}
OF_OWN_HEADS: dict[str, Expected] = {
    "tied head not updated": (omit_head, "tensors-differ", "tensors differ: lm_head.weight."),
}
OF_ADAPTERS: dict[str, Expected] = {
    "LoRA sync dropped": (send_base, "weights-faulty", "has the base model without the adapter."),
    "merged adapter applied twice": (apply_twice, "weights-faulty", "has the adapter applied twice."),
    "sync of step k - 1": (send_earlier, "weights-stale", "is unchanged since sync "),
}
