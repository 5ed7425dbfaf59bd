"""Whole runs with the observer `telemetry`, and a collector that parses OTLP."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import opentelemetry.semconv._incubating.attributes.gen_ai_attributes as gen_ai
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from safetensors.numpy import load_file

from rllm.cli.main import main
from rllm_core import AgentTrainer
from rllm_core.contracts import NoParams, Observer, TrackedRun
from rllm_core.rollout.waits import Wait, open_rollout
from rllm_record.run_files import read_metrics
from rllm_record.steps import StepFiles
from rllm_telemetry.observer import TelemetryObserver
from rllm_telemetry.sending import instrument_name

from .conftest import Collector, attributes

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning")]
Start = Callable[..., Collector]
SMALL = (
    "data.train_batch_size=4",
    "rllm.rollout.n=4",
    "rllm.trainer.total_batches=3",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.logger=[]",
    "rllm.record=tokens",
)
ASYNCHRONOUS = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=1")


def train(directory: Path, name: str, *words: str, observers: str = "[telemetry]") -> Path:
    """Train with a few small steps, and return the run directory."""
    run = (f"rllm.trainer.output_dir={directory}", f"rllm.trainer.experiment_name={name}")
    assert main(["train", "guess", *SMALL, *run, f"rllm.trainer.observers={observers}", *words]) == 0
    return directory / "rllm-training" / name


def count_recorded_calls(run: Path) -> Counter[str]:
    """Return the number of model calls of each rollout in the record."""
    files, calls = StepFiles(run / "record"), Counter[str]()
    for step in files.steps():
        for recorded in files.episodes(step):
            calls[recorded.episode.id] += sum(len(each.steps) for each in recorded.episode.trajectories)
    return calls


@pytest.mark.smoke
@pytest.mark.parametrize("words", [(), ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_each_model_call_has_a_span(start_collector: Start, tmp_path: Path, words: tuple[str, ...]) -> None:
    collector = start_collector()
    run = train(tmp_path, "one", *words)

    # The validation after the last step has its own trace, and the record has no validations.
    traces = {span.trace_id for span in collector.find("step")}
    calls, rollouts = (
        [span for span in collector.find(name) if span.trace_id in traces] for name in ("chat", "rollout")
    )
    recorded = count_recorded_calls(run)
    in_rollout = Counter(span.parent_span_id for span in calls)
    sent = Counter[str]()
    for rollout in rollouts:
        sent[attributes(rollout)["rllm.rollout"]] += in_rollout.pop(rollout.span_id)
        assert attributes(rollout)["rllm.turns"] >= 1
    assert in_rollout == {}
    assert len(calls) == recorded.total()
    assert sent == recorded
    assert {attributes(span)["rllm.step"] for span in collector.find("step")} == {0, 1, 2}
    assert len({span.span_id for span in collector.spans}) == len(collector.spans)


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_spans_have_the_parents_of_a_step(start_collector: Start, tmp_path: Path, words: tuple[str, ...]) -> None:
    collector = start_collector()
    run = train(tmp_path, "one", "rllm.trainer.test_freq=3", *words)

    parents = {
        "step": {""},
        "validation": {""},
        "checkpoint": {""},
        "stage": {"step"},
        "update": {"stage update"},
        "sync_weights": {"stage update"},
        "rollout": {"stage generate", "validation"},
        "chat": {"rollout"},
    }
    assert {name: collector.parent_names(collector.find(name)) for name in parents} == parents
    # A batch of an asynchronous run starts before the previous step ends, but each trace has one step.
    traces = {span.trace_id for span in collector.find("step")}
    assert len(traces) == 3
    stages = Counter(span.name for span in collector.find("stage"))
    assert set(stages.values()) == {3}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans)
    last = {
        instrument_name(name): float(value)
        for row in read_metrics(run)
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float)
    }
    assert last.items() <= collector.metrics.items()
    assert {each["service.name"] for each in collector.resources} == {"rllm"}
    assert {each["rllm.run"] for each in collector.resources} == {str(run)}


@pytest.mark.long
def test_model_calls_use_the_names_of_conventions(start_collector: Start, tmp_path: Path) -> None:
    collector = start_collector()
    train(tmp_path, "one")

    known = {value for value in vars(gen_ai).values() if isinstance(value, str) and value.startswith("gen_ai.")}
    names = {each.key for span in collector.spans for each in span.attributes if each.key.startswith("gen_ai.")}
    assert names and names <= known
    call = attributes(collector.find("chat")[0])
    assert call[gen_ai.GEN_AI_OPERATION_NAME] == gen_ai.GenAiOperationNameValues.CHAT.value
    assert call[gen_ai.GEN_AI_REQUEST_MODEL] == "tiny"
    assert call[gen_ai.GEN_AI_USAGE_INPUT_TOKENS] > 0 < call[gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS]
    assert set(call[gen_ai.GEN_AI_RESPONSE_FINISH_REASONS]) <= {"stop", "length"}


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_lost_collector_changes_no_weight(
    start_collector: Start,
    tmp_path: Path,
    words: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = train(tmp_path, "plain", *words, observers="[]")
    random.seed(1)
    before = random.getstate()
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "64")
    dying = start_collector(die_after=1)
    lost = train(tmp_path, "lost", *words)

    assert weights(plain).keys() == weights(lost).keys()
    for name, array in weights(plain).items():
        assert array.tobytes() == weights(lost)[name].tobytes(), name
    assert dying.spans
    assert re.search(r"telemetry: (\d+) of \d+ spans were not delivered", capfd.readouterr().err)
    assert random.getstate() == before


@pytest.mark.long
def test_run_ends_without_stuck_collector(
    start_collector: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_collector(is_stuck=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "86400")
    run = train(tmp_path, "one")

    lost = re.search(r"(\d+) of (\d+) spans and (\d+) of (\d+) metrics were not delivered", capfd.readouterr().err)
    assert lost is not None
    assert lost[1] == lost[2] and lost[3] == lost[4]
    assert int(lost[1]) > count_recorded_calls(run).total()


def weights(run: Path) -> dict[str, Any]:
    """Return the tensors of the last checkpoint."""
    files = sorted((run / "checkpoints" / "latest").resolve().rglob("*.safetensors"))
    return {f"{file.name}/{name}": array for file in files for name, array in load_file(file).items()}


@pytest.mark.parametrize("name", ["val/guess/pass@1", "95th_length", "_hidden", "βloss", "x" * 300])
def test_library_accepts_each_metric(name: str) -> None:
    MeterProvider().get_meter("test").create_gauge(instrument_name(name))


class Veto(Observer):
    def on_validation_start(self, global_step: int) -> bool:
        return False


@pytest.mark.long
def test_vetoed_validation_has_a_span(start_collector: Start, tmp_path: Path) -> None:
    collector = start_collector()
    trainer = {"output_dir": str(tmp_path), "observers": ["telemetry"], "total_batches": 1, "test_freq": 1}
    AgentTrainer(config={"rllm": {"env": {"name": "guess"}, "trainer": trainer}}, observers=[Veto()]).train()

    skipped = [attributes(span) for span in collector.find("validation")]
    assert skipped == [{"rllm.finished_steps": number, "rllm.is_skipped": True} for number in (0, 1)]
    assert collector.orphans() == []


def test_stopped_rollout_keeps_its_calls(start_collector: Start, tmp_path: Path) -> None:
    collector = start_collector()

    def stop() -> None:
        observer = TelemetryObserver(NoParams())
        run = TrackedRun(directory=tmp_path, project_name="project", experiment_name="one", config={})
        observer.wrap_backend(MagicMock(), run)
        observer.wrap_engine(MagicMock(), run)
        observer.on_validation_start(0)
        with open_rollout("t:0"):
            with Wait("model"):
                pass
            observer.close()

    copy_context().run(stop)
    assert [span.name for span in collector.spans] == ["chat policy", "rollout", "validation"]
    assert collector.orphans() == []
    assert {attributes(span).get("error.type") for span in collector.spans[1:]} == {"unfinished"}
