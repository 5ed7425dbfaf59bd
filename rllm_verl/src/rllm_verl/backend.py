"""VerlBackend: it controls verl's worker groups, which train, and verl's rollout servers, which sample.

`VerlComparison` compares the weights of the rollout servers with the workers' weights.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.weight_comparison import find_differences
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import Dtype
from rllm_core.contracts.weight_comparison import KnownFault, Probe, TensorDifference, WeightComparison
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError, RllmError
from rllm_core.notices import one_line, say, warn_once
from rllm_core.seeding import derive_seed
from rllm_serving.process_directory import ProcessDirectory
from rllm_verl.calls import Driver, restore_sigterm
from rllm_verl.logprobs import CPU_SERVER, VLLM
from rllm_verl.model import Model, digest_of, lora_rank_of, open_model
from rllm_verl.native import native_config, worker_environment
from rllm_verl.settings import VerlConfig
from rllm_verl.state import (
    MODEL,
    SHARDS,
    CheckpointMetadata,
    check_metadata,
    check_resumable,
    fetch_model,
    move_model,
    write_metadata,
)

if TYPE_CHECKING:
    from rllm_verl.processes import Process
    from rllm_verl.rollouts import VerlEngine
    from rllm_verl.session import Session


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


T = TypeVar("T")


class VerlBackend(Backend):
    """The `verl` backend. verl's blocking calls run on one thread, and rollouts run concurrently on the event loop."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._connecting = self._closing = False
        self._comparison: VerlComparison | None = None
        self._driver: Driver | None = None
        self._files: ProcessDirectory | None = None
        self._version = 0
        self._waking = asyncio.Lock()

    def check_checkpoint(self, run: RunContext, directory: Path) -> None:
        settings: VerlConfig = run.backend_config
        trainer, role = settings.trainer, settings.actor_rollout_ref
        check_resumable(
            directory,
            workers=trainer["n_gpus_per_node"] * trainer["nnodes"],
            strategy=role["actor"]["strategy"],
            model=digest_of(role["model"]["path"]),
            lora_rank=lora_rank_of(role["model"]["path"], role["model"]["lora_rank"]),
        )

    async def start(self, run: RunContext) -> VerlEngine:
        settings: VerlConfig = run.backend_config
        self._deadlines = settings.deadlines
        environment = worker_environment(settings)
        # verl detects the platform when it is imported, both in this process and in the workers.
        os.environ.update(environment)
        silence_libraries()
        self._files = ProcessDirectory("rllm-verl-")
        self._files.claim_children()  # Ray's processes
        self._driver = Driver(self._processes, self._kill)
        self._seed_of_model = derive_seed(run.seed, "model")
        self._model = await self._start(lambda: self._open_model(run), "loading the model's tokenizer")
        self._native = native_config(settings, self._model, run.total_steps, run.needs)
        session = await self._start(lambda: self._connect(run, environment), "starting Ray")
        restore_sigterm()
        await self._start(session.start_workers, "starting the training workers")
        await self._start(session.load_model, "loading the model into the training workers")
        await self._start(session.start_servers, "starting the rollout servers")
        say("verl: bringing weights to the rollout servers")
        await self.sync_weights(0)
        if self._native.actor_rollout_ref.rollout.name in COMPARED:
            self._comparison = VerlComparison(session, self._native, self._model, self._compare, self._wake)
        return session.engine(self._wake, self._deadlines.rollout)

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        session = self._require_session()
        return await self._run(lambda: session.process(batch, needs), "computing log-probs", "update")

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        session = self._require_session()
        return await self._run(lambda: session.update(batch, plan), "updating the policy", "update")

    async def sync_weights(self, version: int) -> None:
        session = self._require_session()
        self._version = version
        if self._comparison is not None:
            await self._comparison.prepare()
        await self._run(
            lambda: session.sync_weights(version), "bringing weights to the rollout servers", "sync_weights"
        )

    def weight_comparison(self) -> WeightComparison | None:
        return self._comparison

    async def save(self, directory: Path) -> None:
        session = self._require_session()
        await self._run(lambda: session.save(directory / SHARDS, self._version), "saving a checkpoint", "checkpoint")
        move_model(directory)
        write_metadata(directory, self._made_by())
        if session.saves_adapter:
            (directory / MODEL).mkdir()
            await self._run(lambda: fetch_model(directory, directory / MODEL), "saving the adapter", "checkpoint")

    async def load(self, directory: Path) -> None:
        session = self._require_session()
        check_metadata(directory, self._made_by())
        await self._run(lambda: session.load(directory / SHARDS), "loading a checkpoint", "checkpoint")

    async def close(self) -> None:
        self._closing = True
        if self._connecting and self._driver is not None:
            try:
                # If a start was interrupted, the call that is still running must end first.
                await self._driver.free(self._interrupt, self._deadlines.close)
                await self._driver.run(
                    self._end_session,
                    doing="ending Ray",
                    seconds=self._deadlines.close,
                    key="deadlines.close",
                    find_end=lambda: None,
                )
            except RllmError as error:
                # The run's own error is more important than this one, so this one is only a warning.
                warn_once(one_line(str(error)))
        if self._driver is not None:
            self._driver.close()
        if self._files is not None:
            self._files.close()
        self._session = self._driver = self._files = None
        self._connecting = self._closing = False

    def _open_model(self, run: RunContext) -> Model:
        assert self._files is not None
        settings: VerlConfig = run.backend_config
        return open_model(
            settings.actor_rollout_ref["model"]["path"],
            seed=self._seed_of_model,
            directory=self._files.path,
            without_thinking=run.config.rllm.disable_thinking,
        )

    def _connect(self, run: RunContext, environment: dict[str, str]) -> Session:
        from rllm_verl.session import Session  # imports verl, which reads the environment that is now set

        # Set `_connecting` before reading `_closing`. `close` runs concurrently and uses the opposite order.
        self._connecting = True
        if self._closing:
            raise BackendError("run-stopped", "The run was stopped before Ray was started.")
        # The session is stored here because the coroutine that awaits this call can be cancelled.
        self._session = Session(run, self._native, self._model, environment)
        return self._session

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()

    async def _wake(self) -> None:
        """Send the weights to the servers again if they freed them for an update that did not happen."""
        if self._require_session().asleep:
            async with self._waking:  # a hundred rollouts can call this at the same time
                if self._require_session().asleep:
                    await self.sync_weights(self._version)

    def _made_by(self) -> CheckpointMetadata:
        from rllm_verl.installed import version

        session = self._require_session()
        return CheckpointMetadata(
            model=self._model.digest,
            workers=session.n_workers,
            strategy=session.strategy,
            verl=version(),
            base=self._model.name,
            seed=self._model.seed,
            lora_rank=int(self._native.actor_rollout_ref.model.lora_rank),
        )

    async def _start(self, call: Callable[[], T], doing: str) -> T:
        say(f"verl: {doing}")
        return await self._run(call, doing, "start")

    async def _compare(self, call: Callable[[], T], doing: str) -> T:
        return await self._run(call, doing, "sync_weights")

    async def _run(self, call: Callable[[], T], doing: str, deadline: str) -> T:
        if self._driver is None:
            raise BackendError("not-started", "The verl backend has not been started.", "Call start() first.")
        seconds = float(getattr(self._deadlines, deadline))
        return await self._driver.run(call, doing=doing, seconds=seconds, key=f"deadlines.{deadline}")

    def _processes(self) -> Sequence[Process]:
        return self._session.processes if self._session is not None else ()

    def _interrupt(self) -> None:
        if self._session is not None:
            self._session.interrupt()

    def _kill(self) -> None:
        if self._session is not None:
            self._session.kill()

    def _require_session(self) -> Session:
        if self._session is None:
            raise BackendError("not-started", "The verl backend has not been started.", "Call start() first.")
        return self._session


OF_TORCH_FX = "torch.fx._symbolic_trace"
"""A logger that warns about its use by tensordict."""


def silence_libraries() -> None:
    """Switch off the libraries' progress bars and messages, because they would interrupt rllm's own progress lines."""
    from transformers.utils import logging as of_transformers

    of_transformers.disable_progress_bar()
    logging.getLogger(OF_TORCH_FX).setLevel(logging.ERROR)
    # verl reads this on import. A value that the user has set is kept.
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")
