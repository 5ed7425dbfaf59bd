"""A collector for OTLP over HTTP, which reads the messages with OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """A server on a free port of this machine, and all that it has received."""

    def __init__(self, *, die_after: int | None = None, is_stuck: bool = False) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: dict[str, float] = {}
        self._die_after = die_after
        self._is_released = threading.Event()
        """Set when the collector answers. A stuck collector answers when it stops."""
        if not is_stuck:
            self._is_released.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        """Close the port, so that further connections are refused."""
        self._is_released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def find(self, name: str) -> list[Any]:
        """Return the spans with a name, or with names that begin with it and a space."""
        return [span for span in self.spans if span.name == name or span.name.startswith(f"{name} ")]

    def orphans(self) -> list[str]:
        """Return the names of spans whose parents have not arrived."""
        ids = {span.span_id for span in self.spans} | {b""}
        return [span.name for span in self.spans if span.parent_span_id not in ids]

    def parent_names(self, spans: list[Any]) -> set[str]:
        """Return the names of the parents, or an empty name for root spans."""
        names = {span.span_id: span.name for span in self.spans} | {b"": ""}
        return {names[span.parent_span_id] for span in spans}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receive, is_released = self._receive, self._is_released

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                is_released.wait()
                self.send_response(200 if receive(self.path, body) else 400)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _receive(self, path: str, body: bytes) -> bool:
        if path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {each.name: each.gauge.data_points[0].as_double for each in scope.metrics}
            return True
        if self._die_after is not None and len(self.spans) >= self._die_after:
            return False
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append({each.key: each.value.string_value for each in resource.resource.attributes})
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return True


def attributes(span: Any) -> dict[str, Any]:
    """Return the attributes of a span as Python values."""
    values = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        values[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return values


@pytest.fixture
def start_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Collector]]:
    """Start collectors. Runs send to the latest one."""
    started: list[Collector] = []

    def start(**options: Any) -> Collector:
        started.append(collector := Collector(**options))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        return collector

    yield start
    for collector in started:
        collector.stop()
