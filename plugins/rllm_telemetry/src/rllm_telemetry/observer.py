"""The observer `telemetry`: a trace for each step of a run, with spans for its stages, rollouts and waits.

Names and attributes of model calls and tools follow OpenTelemetry's GenAI conventions (schema 1.44.0).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from rllm_core.contracts.backend import Backend, BackendWrapper, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.rollout.waits import ModelCall, OpenRollout, RolloutListener, Wait
from rllm_telemetry.messages import Value, children, encode_rest, encode_span, encode_text, root
from rllm_telemetry.sending import Sender, run_resource

SHORTEST_WAIT = 0.001
"""Seconds. Shorter waits have no span, unless they are model calls or tools."""
UNFINISHED = "unfinished"
"""The `error.type` of spans that had not ended at the end of the run."""


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """The start of a span."""

    context: SpanContext
    family: bytes
    start: int
    """Nanoseconds since the start of 1970."""

    def as_parent(self) -> Context:
        """Return a context in which new spans are children of this span."""
        return trace.set_span_in_context(NonRecordingSpan(self.context), Context())


@dataclass(slots=True)
class RolloutSpan:
    """The start of a rollout."""

    span: bytes
    family: bytes
    children: bytes
    start: int
    epoch: int
    """Nanoseconds since the start of 1970 at second 0 of `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class StepSpan:
    """The root span of a step, and the span of its current stage."""

    step: TrainStep
    root: OpenSpan
    stages: list[tuple[str, OpenSpan, Token[Context]]] = field(default_factory=list)


class RunSpans(RolloutListener):
    """All spans of one run."""

    def __init__(self, sender: Sender, sampler: Sampler, model: str) -> None:
        self._send, self._sampler, self._model = sender.send, sampler, model
        # Environments may use Python's global generator, so ids have a separate generator.
        self._random = random.Random()
        self._steps: dict[int, StepSpan] = {}
        self._rollouts: dict[OpenRollout, RolloutSpan] = {}
        self._validation: tuple[OpenSpan, Token[Context], int] | None = None

    def start_stage(self, step: TrainStep, stage: str) -> None:
        """Start the span of a stage. Rollouts of its context become its children."""
        entry = self._steps.get(id(step))
        if entry is None:
            entry = self._steps[id(step)] = StepSpan(step, self._start(Context()))
        span = self._start(entry.root.as_parent())
        entry.stages.append((f"stage {stage}", span, context.attach(span.as_parent())))

    def end_stage(self, step: TrainStep) -> None:
        """End the span of the current stage."""
        name, span, token = self._steps[id(step)].stages.pop()
        context.detach(token)
        self._end(span, name)

    def end_step(self, step: TrainStep) -> None:
        """End the spans of a step and of all rollout batches that it has used."""
        for key, entry in list(self._steps.items()):
            if entry.step is step or entry.step.task_batch <= step.task_batch:
                self._end_root(entry)
                del self._steps[key]

    def start_validation(self, finished_steps: int) -> None:
        """Start the span of a validation. Rollouts of its context become its children."""
        self.end_validation(is_skipped=True)
        span = self._start(Context())
        self._validation = span, context.attach(span.as_parent()), finished_steps

    def end_validation(self, *, is_skipped: bool = False, error: str | None = None) -> None:
        """End the span of the validation. If an observer skipped it, the span's duration is 0."""
        if self._validation is not None:
            (span, token, finished_steps), self._validation = self._validation, None
            context.detach(token)
            attributes: dict[str, Value] = {"rllm.finished_steps": finished_steps}
            if is_skipped:
                self._end(span, "validation", {**attributes, "rllm.is_skipped": True}, end=span.start)
            else:
                self._end(span, "validation", attributes, error)

    @contextmanager
    def part(
        self, name: str, attributes: dict[str, Value] | None = None, parent: Context | None = None
    ) -> Iterator[None]:
        """Return a context manager with a span. `parent` is the current context if it is None."""
        span = self._start(parent)
        token, error = context.attach(span.as_parent()), None
        try:
            yield
        except BaseException as raised:
            error = failure_name(raised)
            raise
        finally:
            context.detach(token)
            self._end(span, name, attributes, error)

    def close(self) -> None:
        """End the spans of steps and rollouts that were stopped. Spans of later rollouts are dropped."""
        self.ignore()
        rollouts, self._rollouts = self._rollouts, {}
        for rollout, span in rollouts.items():
            self._end_rollout(rollout, span, UNFINISHED)
        self.end_validation(error=UNFINISHED)
        for entry in self._steps.values():
            self._end_root(entry)
        self._steps.clear()

    def on_rollout_start(self, rollout: OpenRollout) -> None:
        """Store the start of a rollout."""
        parent = trace.get_current_span().get_span_context()
        if parent.trace_flags.sampled:
            family = children(parent.trace_id, parent.span_id)
            span, now = self._random.randbytes(8), time.time_ns()
            epoch = now - int(rollout.changed * 1e9)
            self._rollouts[rollout] = RolloutSpan(span, family, family[:-8] + span, now, epoch)

    def on_wait_end(self, rollout: OpenRollout, wait: Wait, error: BaseException | None) -> None:
        """Send the span of the wait that has ended."""
        kind, end = wait.kind, rollout.changed
        is_short = kind != "model" and kind != "tool" and error is None and end - wait.since < SHORTEST_WAIT
        if is_short or (above := self._rollouts.get(rollout)) is None:
            return
        failure = failure_name(error)
        rest = (
            encode_call(self._model, wait.call, failure) if kind == "model" else encode_wait(kind, wait.name, failure)
        )
        start_ns, end_ns = above.epoch + int(wait.since * 1e9), above.epoch + int(end * 1e9)
        self._send(encode_span(above.children, self._random.randbytes(8), start_ns, end_ns, rest))

    def on_rollout_end(self, rollout: OpenRollout, error: BaseException | None) -> None:
        """Send the span of the rollout that has ended."""
        if (span := self._rollouts.pop(rollout, None)) is not None:
            self._end_rollout(rollout, span, failure_name(error))

    def _end_rollout(self, rollout: OpenRollout, span: RolloutSpan, error: str | None) -> None:
        rest = encode_rollout(rollout.turn + 1, error) + encode_text("rllm.rollout", rollout.uid)
        self._send(encode_span(span.family, span.span, span.start, time.time_ns(), rest))

    def _end_root(self, entry: StepSpan) -> None:
        step = entry.step
        self._end(entry.root, "step", {"rllm.task_batch": step.task_batch, "rllm.step": step.global_step})

    def _start(self, parent: Context | None) -> OpenSpan:
        """Start a span. Without a span in `parent`, it has its own trace, and the sampler decides if it is sent."""
        above = trace.get_current_span(parent).get_span_context()
        if above.is_valid:
            trace_id, flags = above.trace_id, above.trace_flags
            family = children(trace_id, above.span_id)
        else:
            trace_id = self._random.getrandbits(128) or 1
            is_sampled = self._sampler.should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
            flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
            family = root(trace_id)
        own = SpanContext(trace_id, self._random.getrandbits(64) or 1, is_remote=False, trace_flags=flags)
        return OpenSpan(own, family, time.time_ns())

    def _end(
        self,
        span: OpenSpan,
        name: str,
        attributes: dict[str, Value] | None = None,
        error: str | None = None,
        *,
        end: int | None = None,
    ) -> None:
        """Send the span of a part that has ended now, or at the nanosecond `end`."""
        if span.context.trace_flags.sampled:
            rest = encode_rest(name, error, attributes or {})
            own = span.context.span_id.to_bytes(8)
            end = time.time_ns() if end is None else end
            self._send(encode_span(span.family, own, span.start, end, rest))


def failure_name(error: BaseException | None) -> str | None:
    """Return the `error.type` of a span."""
    return None if error is None else type(error).__qualname__


@lru_cache(4_096)
def encode_call(model: str, call: ModelCall | None, error: str | None) -> bytes:
    """Return name and attributes of a model call. Prompts and responses are not in them."""
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "rllm",
        "gen_ai.request.model": model,
    }
    if call is not None:
        attributes |= {
            "gen_ai.usage.input_tokens": call.prompt_tokens,
            "gen_ai.usage.output_tokens": call.response_tokens,
            "gen_ai.response.finish_reasons": (call.finish_reason,),
            "rllm.weight_version": call.weight_version,
        }
    return encode_rest(f"chat {model}", error, attributes, is_client=True)


@lru_cache
def encode_wait(kind: str, name: str, error: str | None) -> bytes:
    """Return name and attributes of a wait that is no model call."""
    if kind == "tool":
        attributes: dict[str, Value] = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        return encode_rest(f"execute_tool {name}", error, attributes)
    return encode_rest(f"{kind} {name}".rstrip(), error, {})


@lru_cache
def encode_rollout(turns: int, error: str | None) -> bytes:
    """Return name and attributes of a rollout, without its id."""
    return encode_rest("rollout", error, {"rllm.turns": turns})


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
