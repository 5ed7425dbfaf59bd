"""Comparison of the rollout servers' weights with the workers' weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.weight_comparison import find_differences
from rllm_core.contracts.engine import Dtype
from rllm_core.contracts.weight_comparison import KnownFault, Probe, TensorDifference, WeightComparison
from rllm_verl.logprobs import CPU_SERVER, VLLM
from rllm_verl.model import Model

if TYPE_CHECKING:
    from rllm_verl.session import Session

T = TypeVar("T")
Scores = NDArray[np.float32]
COMPARED = (VLLM, CPU_SERVER)
"""Rollout servers that report the log-probs of prompts."""
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""verl's short names of types."""
FEWEST_BITS_FIRST: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")


class VerlComparison(WeightComparison):
    """Scores tokens with verl's ``compute_log_prob`` and with each rollout server's log-probs of prompts.

    Servers on the training GPUs have no room for a forward pass of the workers. So the workers score the probe before
    the servers get the weights. At the first check the servers free their memory once more for this.
    """

    def __init__(
        self,
        session: Session,
        native: Any,
        model: Model,
        run: Callable[[Callable[[], Any], str], Awaitable[Any]],
        wake: Callable[[], Awaitable[None]],
    ) -> None:
        """Prepare the comparison of a started run.

        Args:
            session: the run's verl objects.
            native: verl's whole configuration (DictConfig).
            model: the trained model.
            run: runs a blocking call. The second argument describes the call for errors.
            wake: sends the weights to the servers if they have freed them. It calls `prepare` before.
        """
        self.vocabulary, self.layers = model.vocabulary, model.layers
        self.max_context = native.actor_rollout_ref.rollout.max_model_len - 1
        self.dtype = computed_dtype(native.actor_rollout_ref)
        self._has_adapter = bool(native.actor_rollout_ref.model.lora_rank)
        self._is_cheap = native.actor_rollout_ref.rollout.name == CPU_SERVER
        self._session = session
        self._run = run
        self._wake = wake
        self._probe: Probe | None = None
        self._prepared: Scores | None = None
        self._digests: dict[str, Mapping[str, str]] = {}
        """The servers' digests from before they freed their weights."""

    async def prepare(self) -> None:
        """Score the probe with the workers, before a weight sync to servers that sleep during training."""
        if self._probe is not None and self._session.asleep:
            self._prepared = await self._score(self._probe)

    async def of_trainer(self, probe: Probe) -> Scores:
        if not self._session.servers.sleeps:
            return await self._score(probe)
        if self._probe is not probe:
            self._probe = probe
            await self._run(self._session.servers.make_room, "freeing the rollout servers' memory")
            await self._wake()
        assert self._prepared is not None
        return self._prepared

    async def of_samplers(self, probe: Probe) -> Mapping[str, Scores]:
        session = self._session
        scores: Mapping[str, Scores] = await self._run(
            lambda: session.servers.score(probe), "scoring tokens with the rollout servers"
        )
        return scores

    async def of_suspects(self, probe: Probe) -> Mapping[KnownFault, Scores]:
        if not self._session.can_apply_faults:
            return {}
        adapter = (KnownFault.NO_ADAPTER, KnownFault.ADAPTER_TWICE) if self._has_adapter else ()
        if self._session.servers.sleeps and not self._session.asleep:
            self._digests = {name: await self._digest_server(name) for name in self._session.servers.names}
        await self._run(self._session.servers.make_room, "freeing the rollout servers' memory")
        scores = {
            fault: await self._score(probe, fault) for fault in (*adapter, KnownFault.BFLOAT16, KnownFault.FLOAT16)
        }
        return {fault: each for fault, each in scores.items() if np.isfinite(each).all()}

    async def different_tensors(self, sampler: str, *, is_suspect: bool) -> Sequence[TensorDifference] | None:
        session = self._session
        if not (is_suspect or self._is_cheap):
            return None
        own = self._digests[sampler] if session.asleep else await self._digest_server(sampler)
        if not own:
            return None
        return find_differences(await self._run(session.digests, "comparing the workers' weights"), own)

    async def _digest_server(self, server: str) -> Mapping[str, str]:
        session = self._session
        digests: Mapping[str, str] = await self._run(
            lambda: session.servers.digests(server), "comparing the rollout servers' weights"
        )
        return digests

    async def _score(self, probe: Probe, fault: KnownFault | None = None) -> Scores:
        session = self._session
        scores: Scores = await self._run(lambda: session.score(probe, fault), "scoring tokens with the workers")
        return scores


def computed_dtype(role: Any) -> Dtype:
    """Return the type with the fewest significant bits on the way from trained weights to a server's log-probs.

    Args:
        role: verl's section ``actor_rollout_ref``.
    """
    settings = role.actor.get("fsdp_config") or {}
    precision = settings.get("mixed_precision") or {}
    names = {role.rollout.dtype, settings.get("dtype") or "bfloat16", precision.get("param_dtype") or "bf16"}
    if role.model.lora_rank and role.model.lora.merge:
        names.add("bfloat16")  # verl sends merged weights in this type
    types = {SHORT.get(name, name) for name in names}
    return next(dtype for dtype in FEWEST_BITS_FIRST if dtype in types)
