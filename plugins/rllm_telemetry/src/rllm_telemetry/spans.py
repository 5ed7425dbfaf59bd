"""Spans of one run: a trace for each step, with its stages, rollouts and waits.

Names and attributes of model calls and tools follow OpenTelemetry's GenAI conventions (schema 1.44.0).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.trace import Span, SpanContext

from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.rollout.waits import OpenRollout, RolloutListener, Wait
from rllm_telemetry.messages import SCHEMA, SCOPE, MadeSpan, Text, template
from rllm_telemetry.sending import Sender

SHORTEST_WAIT = 1_000_000
"""Nanoseconds. Shorter waits have no span, unless they are model calls or tools."""


@dataclass(slots=True)
class HotSpan:
    """The start of a rollout or a wait, and the result of its model call."""

    own: SpanContext
    parent: SpanContext
    start: int
    """Nanoseconds since the start of 1970."""
    prompt_tokens: int = 0
    completion: Completion | None = None
    token: Token[HotSpan | None] | None = None


@dataclass(frozen=True, slots=True)
class StepSpan:
    """The root span of a step, and the span of its current stage."""

    step: TrainStep
    root: Span
    stages: list[tuple[Span, Token[Context]]] = field(default_factory=list)


_call: ContextVar[HotSpan | None] = ContextVar("call", default=None)
"""The model call that the code of this context makes."""


class RunSpans(RolloutListener):
    """All spans of one run."""

    def __init__(self, sender: Sender, model: str) -> None:
        self._sender, self._model = sender, model
        self.tracer = sender.spans.get_tracer(SCOPE, schema_url=SCHEMA)
        self._called = (
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "rllm"),
            ("gen_ai.request.model", model),
        )
        self._steps: dict[int, StepSpan] = {}
        self._hot: dict[int, HotSpan] = {}
        """Rollouts and waits in progress, by `id`."""
        self._validation: tuple[Span, Token[Context]] | None = None

    def start_stage(self, step: TrainStep, stage: str) -> None:
        """Start the span of a stage. Rollouts of its context become its children."""
        entry = self._steps.get(id(step))
        if entry is None:
            attributes = {"rllm.task_batch": step.task_batch}
            root = self.tracer.start_span("step", Context(), attributes=attributes)
            entry = self._steps[id(step)] = StepSpan(step, root)
        span = self.tracer.start_span(f"stage {stage}", trace.set_span_in_context(entry.root, Context()))
        entry.stages.append((span, context.attach(trace.set_span_in_context(span))))

    def end_stage(self, step: TrainStep) -> None:
        """End the span of the current stage."""
        span, token = self._steps[id(step)].stages.pop()
        context.detach(token)
        self.end(span)

    def end_step(self, step: TrainStep) -> None:
        """End the spans of a step and of all rollout batches that it has used."""
        for key, entry in list(self._steps.items()):
            if entry.step is step or entry.step.task_batch <= step.task_batch:
                entry.root.set_attribute("rllm.step", step.global_step)
                self.end(entry.root)
                del self._steps[key]

    def start_validation(self, finished_steps: int) -> None:
        """Start the span of a validation. Rollouts of its context become its children."""
        self.end_validation()
        span = self.tracer.start_span("validation", Context(), attributes={"rllm.finished_steps": finished_steps})
        self._validation = span, context.attach(trace.set_span_in_context(span))

    def end_validation(self, *, is_skipped: bool = True) -> None:
        """End the span. The span of a validation that an observer skipped is dropped."""
        if self._validation is not None:
            (span, token), self._validation = self._validation, None
            context.detach(token)
            if not is_skipped:
                self.end(span)

    def close(self) -> None:
        """End the spans of steps that were stopped. Spans of later rollouts are dropped."""
        self.ignore()
        self.end_validation()
        for entry in self._steps.values():
            self.end(entry.root)
        self._steps.clear()

    def end(self, span: Span) -> None:
        """End a span, and count it if it is sampled."""
        self._sender.ended += span.get_span_context().trace_flags.sampled
        span.end()

    def on_rollout_start(self, rollout: OpenRollout) -> None:
        """Note the start of a rollout."""
        parent = trace.get_current_span().get_span_context()
        if parent.trace_flags.sampled:
            self._hot[id(rollout)] = HotSpan(self._child_of(parent), parent, time.time_ns())

    def on_wait_start(self, rollout: OpenRollout, wait: Wait) -> None:
        """Note the start. A model call of this context then adds its attributes."""
        above = self._hot.get(id(rollout))
        if above is not None:
            hot = self._hot[id(wait)] = HotSpan(self._child_of(above.own), above.own, time.time_ns())
            if wait.kind == "model":
                hot.token = _call.set(hot)

    def on_wait_end(self, rollout: OpenRollout, wait: Wait, error: BaseException | None) -> None:
        """Make the span of the wait that has ended."""
        hot = self._hot.pop(id(wait), None)
        if hot is None:
            return
        if wait.kind == "model":
            if hot.token is not None:
                _call.reset(hot.token)
            self._end_call(hot, error)
        elif wait.kind == "tool":
            attributes = (("gen_ai.operation.name", "execute_tool"), ("gen_ai.tool.name", wait.name))
            self._send(hot, self._make(f"execute_tool {wait.name}", hot, error, attributes))
        elif error is not None or time.time_ns() - hot.start >= SHORTEST_WAIT:
            self._send(hot, self._make(f"{wait.kind} {wait.name}".rstrip(), hot, error))

    def on_rollout_end(self, rollout: OpenRollout, error: BaseException | None) -> None:
        """Make the span of the rollout that has ended."""
        if (hot := self._hot.pop(id(rollout), None)) is not None:
            message = self._make("rollout", hot, error)
            message.attributes.add(key="rllm.rollout").value.string_value = rollout.uid
            message.attributes.add(key="rllm.turns").value.int_value = rollout.turn + 1
            self._send(hot, message)

    def _end_call(self, hot: HotSpan, error: BaseException | None) -> None:
        """Make the span of a model call. Prompts and responses are not in it."""
        attributes: tuple[tuple[str, Text], ...] = self._called
        completion = hot.completion
        if completion is not None:
            attributes = (*attributes, ("gen_ai.response.finish_reasons", (completion.finish_reason,)))
        message = self._make(f"chat {self._model}", hot, error, attributes, is_client=True)
        if completion is not None:
            add = message.attributes.add
            add(key="gen_ai.usage.input_tokens").value.int_value = hot.prompt_tokens
            add(key="gen_ai.usage.output_tokens").value.int_value = len(completion.token_ids)
            add(key="rllm.weight_version").value.int_value = completion.weight_version
        self._send(hot, message)

    def _send(self, hot: HotSpan, message: Message) -> None:
        """Send a message, which must not change later, because a thread reads it."""
        self._sender.send(MadeSpan(hot.own, message))

    def _child_of(self, parent: SpanContext) -> SpanContext:
        return SpanContext(parent.trace_id, self._sender.ids.generate_span_id(), False, parent.trace_flags)

    def _make(
        self,
        name: str,
        hot: HotSpan,
        error: BaseException | None,
        attributes: tuple[tuple[str, Text], ...] = (),
        *,
        is_client: bool = False,
    ) -> Message:
        """Return the message of a span that has ended."""
        if error is not None:
            attributes = (*attributes, ("error.type", type(error).__qualname__))
        message = Message()
        message.CopyFrom(template(name, is_client=is_client, is_error=error is not None, attributes=attributes))
        message.trace_id = hot.own.trace_id.to_bytes(16, "big")
        message.span_id = hot.own.span_id.to_bytes(8, "big")
        message.parent_span_id = hot.parent.span_id.to_bytes(8, "big")
        message.start_time_unix_nano = hot.start
        message.end_time_unix_nano = time.time_ns()
        return message


class TracedEngine(EngineWrapper):
    """An engine that adds the tokens of each call to its span. Without a span, it adds nothing."""

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Sample with the inner engine."""
        completion = await self.inner.generate(prompt_ids, sampling, session=session)
        if (call := _call.get()) is not None:
            call.prompt_tokens, call.completion = len(prompt_ids), completion
        return completion
