"""Spans and metrics of runs for any OpenTelemetry collector: the observer `telemetry`."""
