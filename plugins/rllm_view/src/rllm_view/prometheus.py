"""Metrics of the running runs for Prometheus: ``GET /metrics``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rllm_record.pending import read_pending
from rllm_record.run_files import read_status
from rllm_serving.prometheus import GaugeMetricFamily, gauge_name
from rllm_view.reading.run import Run, last_values


def families(runs: Iterable[Run]) -> Iterator[GaugeMetricFamily]:
    """Yield the latest value of each metric, and the numbers of pending rollouts."""
    running = {run.place.name: run for run in runs if is_running(run)}
    pending = GaugeMetricFamily("rllm_pending_rollouts", "Number of rollouts in progress.", labels=("run",))
    by_part = GaugeMetricFamily(
        "rllm_pending_rollouts_by_part",
        "Number of the 200 longest waits, by the part that they wait for.",
        labels=("run", "waits_for"),
    )
    longest = GaugeMetricFamily(
        "rllm_longest_wait_start_time_seconds", "Start of the longest wait of a rollout.", labels=("run",)
    )
    for name, run in running.items():
        content = read_pending(run.place.directory)
        pending.add_metric((name,), content.total)
        for part, number in Counter(row.waits_for for row in content.rows).items():
            by_part.add_metric((name, part), number)
        for row in content.rows[:1]:
            longest.add_metric((name,), row.since)
    yield from (pending, by_part, longest)
    yield from _metric_families({name: last_values(run.lines()) for name, run in running.items()})


def is_running(run: Run) -> bool:
    """Return True if a process still writes the run."""
    status = read_status(run.place.directory)
    return status is not None and status.status == "running"


def _metric_families(values: Mapping[str, Mapping[str, float]]) -> Iterator[GaugeMetricFamily]:
    """Yield a family for each metric of any run. Metrics with the same valid name are shown once."""
    originals: dict[str, str] = {}
    for metric in sorted({metric for each in values.values() for metric in each}):
        originals.setdefault(gauge_name(metric), metric)
    for name, metric in originals.items():
        family = GaugeMetricFamily(name, f"Metric {metric} of the latest step that has it.", labels=("run",))
        for run, each in values.items():
            if metric in each:
                family.add_metric((run,), each[metric])
        yield family
