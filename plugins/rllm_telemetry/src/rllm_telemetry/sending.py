"""Sends spans and metrics to a collector in a thread. The variables `OTEL_*` are its settings."""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import count

import opentelemetry.exporter.otlp.common.http as otlp_http
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rllm_core.contracts.tracker import TrackedRun
from rllm_core.notices import one_line, say
from rllm_telemetry.messages import SCHEMA, SCOPE, Request

QUEUE = 65_536
"""Maximum number of spans that wait for the collector, without `OTEL_BSP_MAX_QUEUE_SIZE`. A step may have more spans
than the library's default of 2,048."""
BATCH = 8_192
"""Maximum number of spans in a request, without `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`. A request of this
number has about 2 MB."""
PAUSE = 2.0
"""Seconds between two requests."""
SECONDS_BETWEEN_METRICS = 60.0
"""Seconds between two exports of metrics, without `OTEL_METRIC_EXPORT_INTERVAL`."""
SECONDS_TO_END = 1.5
"""Seconds at the end of a run until the remaining spans and metrics are dropped."""
LOGGER = "opentelemetry"


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
    """A queue of spans, the latest metrics, and the thread that sends both."""

    def __init__(self, resource: Resource) -> None:
        # The exporter draws a number for each request from the global generator, and its thread must not change it.
        vars(otlp_http)["random"] = random.Random()
        self._message = LastMessage()
        self._logger = logging.getLogger(LOGGER)
        self._logger.addHandler(self._message)
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._resource, self._request = resource, Request(resource)
        self._queue: deque[bytes] = deque(maxlen=int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)))
        self._batch = int(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH))
        self._metrics: dict[str, float] = {}
        self._numbers, self._accepted, self._accepted_metrics = count(), 0, 0
        milliseconds = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", SECONDS_BETWEEN_METRICS * 1000)
        self._between_metrics = float(milliseconds) / 1000
        is_off = {name: os.environ.get(f"OTEL_{name}_EXPORTER") == "none" for name in ("TRACES", "METRICS")}
        self._spans_to = None if is_off["TRACES"] else OTLPSpanExporter()
        self._metrics_to = None if is_off["METRICS"] else OTLPMetricExporter()
        self._closing, self._has_given_up = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="rllm-telemetry", daemon=True)
        self._thread.start()

    def send(self, span: bytes) -> None:
        """Add a finished span to the queue. A full queue drops its oldest span."""
        if self._spans_to is not None:
            next(self._numbers)  # Threads of environments also send, and `next` is atomic.
            self._queue.append(span)

    def set_metrics(self, metrics: Mapping[str, float]) -> None:
        """Store the latest values of metrics. The collector receives them at each interval, and at the end."""
        if self._metrics_to is not None:
            self._metrics.update(metrics)

    def close(self) -> None:
        """Send the rest for at most `SECONDS_TO_END`, and print the number of lost spans and metrics."""
        self._closing.set()
        self._thread.join(SECONDS_TO_END)
        self._has_given_up = self._thread.is_alive()
        for exporter in (self._spans_to, self._metrics_to):
            if exporter is not None:
                exporter.shutdown()
        self._logger.removeHandler(self._message)
        self._logger.propagate = self._propagated
        lost = [
            f"{whole - accepted} of {whole} {name}"
            for name, whole, accepted in (
                ("spans", next(self._numbers), self._accepted),
                ("metrics", len(self._metrics), self._accepted_metrics),
            )
            if whole > accepted
        ]
        if lost:
            reason = f": {one_line(self._message.text, 120)}" if self._message.text else ""
            say(f"warning: telemetry: {' and '.join(lost)} were not delivered{reason}")

    def _run(self) -> None:
        metrics_at = time.monotonic() + self._between_metrics
        while not self._closing.wait(PAUSE):
            self._send_spans()
            if time.monotonic() >= metrics_at:
                self._send_metrics()
                metrics_at = time.monotonic() + self._between_metrics
        self._send_spans()
        self._send_metrics()

    def _send_spans(self) -> None:
        while self._spans_to is not None and self._queue and not self._has_given_up:
            spans = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            if self._spans_to._client.export(self._request.encode(spans)).success:
                self._accepted += len(spans)

    def _send_metrics(self) -> None:
        if self._metrics_to is None or not self._metrics or self._has_given_up:
            return
        values, now = self._metrics.copy(), time.time_ns()
        metrics = [
            Metric(instrument_name(name), None, None, Gauge([NumberDataPoint(None, 0, now, float(value))]))
            for name, value in values.items()
        ]
        scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, SCHEMA)
        data = MetricsData([ResourceMetrics(self._resource, [scope], SCHEMA)])
        is_accepted = self._metrics_to.export(data) is MetricExportResult.SUCCESS
        self._accepted_metrics = len(values) if is_accepted else 0


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
