"""Sends spans and metrics to a collector in threads. The variables `OTEL_*` are its settings."""

from __future__ import annotations

import logging
import os
import random
import re
import threading
from collections.abc import Mapping

import opentelemetry.exporter.otlp.common.http as otlp_http
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator

from rllm_core.contracts.tracker import TrackedRun
from rllm_core.notices import one_line, say
from rllm_telemetry.messages import MadeSpan, SpanSender

QUEUE = 65_536
"""Maximum number of spans that wait for the collector, without `OTEL_BSP_MAX_QUEUE_SIZE`. A step may have more spans
than the library's default of 2,048."""
SECONDS_TO_END = 5.0
"""Seconds at the end of a run until the remaining spans are dropped."""
LOGGER = "opentelemetry"


class PrivateIds(IdGenerator):
    """Random ids from a separate generator. The library uses Python's global generator, and environments may use it."""

    def __init__(self) -> None:
        self._random = random.Random()

    def generate_span_id(self) -> int:
        """Return 64 bits, not all 0."""
        return self._random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """Return 128 bits, not all 0."""
        return self._random.getrandbits(128) or 1


class LastMessage(logging.Handler):
    """A handler that stores the latest message instead of printing a line for each failed request."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message of a record that explains a failure."""
        if "error" in record.getMessage() or "code" in record.getMessage():
            self.text = record.getMessage()


class Sender:
    """Providers of spans and metrics that belong to one run. Nothing of them is global."""

    def __init__(self, run: TrackedRun) -> None:
        # The exporter draws a number for each request from the global generator, and its thread must not change it.
        vars(otlp_http)["random"] = random.Random()
        self._message = LastMessage()
        self._logger = logging.getLogger(LOGGER)
        self._logger.addHandler(self._message)
        self._propagated, self._logger.propagate = self._logger.propagate, False
        resource = run_resource(run)
        self.ids = PrivateIds()
        self.spans = TracerProvider(resource=resource, id_generator=self.ids, shutdown_on_exit=False)
        self._exporters: list[SpanSender | OTLPMetricExporter] = []
        self.processor: BatchSpanProcessor | None = None
        if os.environ.get("OTEL_TRACES_EXPORTER") != "none":
            self._exporter = SpanSender(resource)
            self._exporters.append(self._exporter)
            size = None if "OTEL_BSP_MAX_QUEUE_SIZE" in os.environ else QUEUE
            self.processor = BatchSpanProcessor(self._exporter, max_queue_size=size)
            self.spans.add_span_processor(self.processor)
        readers = []
        if os.environ.get("OTEL_METRICS_EXPORTER") != "none":
            metric_exporter = OTLPMetricExporter()
            self._exporters.append(metric_exporter)
            readers.append(PeriodicExportingMetricReader(metric_exporter))
        self._metrics = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        self._meter = self._metrics.get_meter("rllm")
        self._gauges: dict[str, object] = {}
        self.ended = 0
        """Number of finished spans."""

    def send(self, span: MadeSpan) -> None:
        """Add a finished span to the queue."""
        if self.processor is not None:
            self.ended += 1
            self.processor.on_end(span)  # type: ignore[arg-type]

    def set_metrics(self, metrics: Mapping[str, float]) -> None:
        """Set a gauge for each metric. The collector receives its latest value at each interval, and at the end."""
        for name, value in metrics.items():
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = self._meter.create_gauge(instrument_name(name))
            gauge.set(value)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Send the rest for at most `SECONDS_TO_END`, and print the number of lost spans."""
        limit = threading.Timer(SECONDS_TO_END, self._give_up)
        limit.daemon = True
        limit.start()
        self.spans.shutdown()
        self._metrics.shutdown(timeout_millis=SECONDS_TO_END * 1000)
        limit.cancel()
        self._logger.removeHandler(self._message)
        self._logger.propagate = self._propagated
        if self.processor is not None and (lost := self.ended - self._exporter.accepted):
            reason = f": {one_line(self._message.text, 120)}" if self._message.text else ""
            say(f"warning: telemetry: {lost} of {self.ended} spans were dropped{reason}")

    def _give_up(self) -> None:
        for exporter in self._exporters:
            exporter.shutdown()


def run_resource(run: TrackedRun) -> Resource:
    """Return the attributes of the run. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` have priority."""
    resource = Resource.create(
        {
            "rllm.project": run.project_name,
            "rllm.experiment": run.experiment_name,
            "rllm.run": str(run.directory),
        }
    )
    name = str(resource.attributes.get(SERVICE_NAME, ""))
    return resource.merge(Resource({SERVICE_NAME: "rllm"})) if name.startswith("unknown_service") else resource


def instrument_name(name: str) -> str:
    """Return a valid name of an instrument, for example ``val/guess/pass_at_1`` for ``val/guess/pass@1``.

    Names begin with an ASCII letter, so other names get the prefix ``m_``.
    """
    valid = re.sub(r"[^-_./a-zA-Z0-9]", "_", name.replace("@", "_at_"))
    return (valid if re.match("[a-zA-Z]", valid) else f"m_{valid}")[:255]
