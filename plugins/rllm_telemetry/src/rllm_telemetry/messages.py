"""Messages of OTLP for spans.

A step has thousands of spans. The bytes of a span are its ids and times, and then its name and attributes, which many
spans share. Fields of Protocol Buffers may have any order, so these two parts are concatenated.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span as Message, Status
from opentelemetry.sdk.resources import Resource

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "rllm"
Value = str | int | bool | tuple[str, ...]
"""Value of an attribute. A tuple is a list of text."""
_ID_AND_TIMES = struct.Struct("<2s8scQcQ")


@lru_cache(10_000)
def field(number: int, length: int) -> bytes:
    """Return the bytes before the content of a field with a length, whose number is at most 15."""
    size = bytes([number << 3 | 2])
    while length > 127:
        size += bytes([length & 127 | 128])
        length >>= 7
    return size + bytes([length])


@lru_cache
def children(trace: int, span: int) -> bytes:
    """Return the bytes that all children of a span share: the trace id, and in the last 8 bytes the span's id."""
    return b'%b"\x08%b' % (root(trace), span.to_bytes(8))


def root(trace: int) -> bytes:
    """Return the trace id's bytes, which a span without a parent has instead of its parent's `children`."""
    return b"\n\x10" + trace.to_bytes(16)


def encode_span(family: bytes, span: bytes, start: int, end: int, rest: bytes) -> bytes:
    """Return the bytes of a finished span.

    Args:
        family: `children` of its parent, or `root`.
        span: 8 bytes, its id.
        start: Nanoseconds since the start of 1970.
        end: In the same unit.
        rest: Its name and attributes, from `encode_rest`.
    """
    message = family + _ID_AND_TIMES.pack(b"\x12\x08", span, b"\x39", start, b"\x41", end) + rest
    return field(2, len(message)) + message


def encode_rest(name: str, error: str | None, attributes: dict[str, Value], *, is_client: bool = False) -> bytes:
    """Return the name, the attributes and the status. `error` is the name of the exception that ended the span."""
    if error is not None:
        attributes = {**attributes, "error.type": error}
    return Message(
        name=name,
        kind=Message.SPAN_KIND_CLIENT if is_client else Message.SPAN_KIND_INTERNAL,
        status=None if error is None else Status(code=Status.STATUS_CODE_ERROR),
        attributes=[KeyValue(key=key, value=_value(value)) for key, value in attributes.items()],
    ).SerializeToString()


def encode_text(key: str, value: str) -> bytes:
    """Return the bytes of an attribute that few spans share, to add to `encode_rest`'s bytes. This is faster."""
    text = value.encode()
    text = field(1, len(text)) + text
    pair = _key(key) + field(2, len(text)) + text
    return field(9, len(pair)) + pair


@lru_cache
def _key(key: str) -> bytes:
    return KeyValue(key=key).SerializeToString()


def _value(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=item) for item in value]))


class Request:
    """Requests with spans of one resource."""

    def __init__(self, resource: Resource) -> None:
        scope = ScopeSpans(schema_url=SCHEMA)
        scope.scope.name = SCOPE
        self._scope = scope.SerializeToString()
        run = ResourceSpans()
        for key, value in resource.attributes.items():
            run.resource.attributes.add(key=key).value.string_value = str(value)
        self._resource = run.SerializeToString()

    def encode(self, spans: list[bytes]) -> bytes:
        """Return the bytes of an `ExportTraceServiceRequest` with spans from `encode_span`."""
        scope = self._scope + b"".join(spans)
        run = self._resource + field(2, len(scope)) + scope
        return field(1, len(run)) + run
