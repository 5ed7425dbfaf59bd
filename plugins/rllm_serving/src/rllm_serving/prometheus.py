"""Metrics of servers in the text format of Prometheus, written by its own library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE, generate_latest

__all__ = ["CONTENT_TYPE", "GaugeMetricFamily", "gauge_name", "write_text"]


class _Families:
    """Metrics of one answer. It has the interface of the library's registries."""

    def __init__(self, families: Iterable[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families


def write_text(families: Iterable[GaugeMetricFamily]) -> bytes:
    """Return the body of an answer with `CONTENT_TYPE`."""
    text: bytes = generate_latest(_Families(families))
    return text


def gauge_name(metric: str) -> str:
    """Return a valid name, for example ``rllm_val_guess_pass_at_1`` for ``val/guess/pass@1``."""
    return "rllm_" + re.sub(r"[^a-zA-Z0-9_]", "_", metric.replace("@", "_at_"))
