"""The observer `telemetry`, and the backend that it wraps."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider

from rllm_core.contracts.backend import Backend, BackendWrapper, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_telemetry.sending import Sender, run_resource
from rllm_telemetry.spans import RunSpans


class TelemetryObserver(Observer):
    """Sends spans and metrics of a run. It begins when the backend is made, and ends with it."""

    def __init__(self, params: NoParams) -> None:
        self._sender: Sender | None = None
        self._spans: RunSpans | None = None

    def wrap_backend(self, backend: Backend, run: TrackedRun) -> Backend:
        resource = run_resource(run)
        # The provider reads the sampler from the variables.
        sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler
        self._sender = Sender(resource)
        self._spans = RunSpans(self._sender, sampler, model_name(run))
        return _TracedBackend(backend, self, self._spans)

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        if self._spans is not None:
            self._spans.listen()
        return engine

    def on_stage_start(self, step: TrainStep, stage: str) -> None:
        if self._spans is not None:
            self._spans.start_stage(step, stage)

    def on_stage_end(self, step: TrainStep, stage: str) -> None:
        if self._spans is not None:
            self._spans.end_stage(step)

    def on_batch_start(self, step: TrainStep) -> None:
        if self._spans is not None:
            self._spans.end_validation(is_skipped=True)

    def on_batch_end(self, step: TrainStep) -> None:
        if self._spans is not None and self._sender is not None:
            self._spans.end_step(step)
            self._sender.set_metrics(step.metrics)

    def on_validation_start(self, global_step: int) -> bool:
        if self._spans is not None:
            self._spans.start_validation(global_step)
        return True

    def on_validation_end(self, global_step: int, metrics: dict[str, float]) -> None:
        if self._spans is not None and self._sender is not None:
            self._spans.end_validation()
            self._sender.set_metrics(metrics)

    def on_train_end(self, global_step: int) -> None:
        if self._spans is not None:
            self._spans.end_validation(is_skipped=True)

    def close(self) -> None:
        """Send the rest, and stop the threads."""
        if self._spans is not None and self._sender is not None:
            self._spans.close()
            self._sender.close()
            self._spans = self._sender = None


class _TracedBackend(BackendWrapper):
    """A backend with spans of its long calls. It ends the observer with the run, also after an error."""

    def __init__(self, backend: Backend, observer: TelemetryObserver, spans: RunSpans) -> None:
        super().__init__(backend)
        self._observer, self._spans = observer, spans

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Update the weights in a span."""
        with self._spans.part("update"):
            return await self.inner.update(batch, plan)

    async def sync_weights(self, version: int) -> None:
        """Sync the weights in a span."""
        with self._spans.part("sync_weights", {"rllm.weight_version": version}):
            await self.inner.sync_weights(version)

    async def save(self, directory: Path) -> None:
        """Save a checkpoint in a span."""
        # A separate trace, because the span of a skipped validation may be the current span.
        with self._spans.part("checkpoint", parent=Context()):
            await self.inner.save(directory)

    async def load(self, directory: Path) -> None:
        """Load a checkpoint in a span."""
        with self._spans.part("load_checkpoint"):
            await self.inner.load(directory)

    async def close(self) -> None:
        """End the observer, and close the backend."""
        try:
            self._observer.close()
        finally:
            await self.inner.close()


def model_name(run: TrackedRun) -> str:
    """Return the name of the model in the config, without its directory."""
    model = run.config.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return Path(str(name)).name if name else "policy"
