"""Every observer of this repository keeps the contract of observers."""

from __future__ import annotations

from rllm_plugin_kit import ObserverContract


class TestJournal(ObserverContract):
    name = "rllm-record/journal"
    options = ({}, {"keep": "off"})


class TestTelemetry(ObserverContract):
    name = "rllm-telemetry/telemetry"
