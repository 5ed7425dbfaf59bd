"""Runs record rollouts and trained tokens. `test_outcomes_add_up.py` tests their outcomes."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from rllm.runs.checkpoint import CheckpointStore
from rllm_core.data.codec import episode_to_json
from rllm_core.errors import RllmError
from rllm_core.plugins.registry import Registry
from rllm_record.recorder import Recorder
from rllm_record.steps import StepFiles
from rllm_record.steps.files import sampler_of
from rllm_record.stored_episodes import find_episodes, read_batches

from .conftest import plan_of

SHORT = {"data.max_response_length": 4}
SEVERAL_BATCHES = {
    "rllm.rejection_sample.enable": True,
    "rllm.rejection_sample.mode": "dynamic",
    "rllm.rejection_sample.max_gen_batches": 3,
    "data.train_batch_size": 4,
    "rllm.rollout.n": 4,
}
TOKENS = {"rllm.record": "tokens", "training.num_epochs": 2}


def files_of(run: Any) -> StepFiles:
    return StepFiles(run.directory / "record")


def test_checkpoint_is_written_after_the_record(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that a resumed run does not make again is in the record."""
    may_write, real_wait = Event(), Recorder.state_dict
    real_write, real_save, recorded = StepFiles.write_tables, CheckpointStore.save, []

    def wait(recorder: Recorder) -> dict[str, Any]:
        may_write.set()
        return real_wait(recorder)

    def write(files: StepFiles, *arguments: Any) -> None:
        may_write.wait(60)
        real_write(files, *arguments)

    async def save(store: CheckpointStore, *arguments: Any) -> None:
        recorded.append(StepFiles("runs/rllm-training/default/record").steps())
        may_write.set()
        await real_save(store, *arguments)

    monkeypatch.setattr(Recorder, "state_dict", wait)
    monkeypatch.setattr(StepFiles, "write_tables", write)
    monkeypatch.setattr(CheckpointStore, "save", save)
    train("lucky", SHORT)

    assert recorded == [[0]]


def test_record_has_the_trained_tokens_and_text(shared_run: Any) -> None:
    run = shared_run("guess", TOKENS)
    recorded, texts = [each.episode for each in files_of(run).episodes(0)], files_of(run).vocabulary(0)
    for found, episode in zip(recorded, run.episodes, strict=True):
        assert found.id == episode.id
        for one, other in zip(found.trajectories, episode.trajectories, strict=True):
            assert one.tokens.ids.tolist() == other.tokens.ids.tolist()
            assert one.tokens.logprobs.tobytes() == other.tokens.logprobs.tobytes()
            assert [step.text for step in one.steps] == [step.text for step in other.steps]
            for turn in one.steps:
                # No tokenizer is needed.
                response = "".join(texts[token] for token in turn.response_ids.tolist())
                assert turn.text == re.sub("<[a-z]+>", "", response)
                prompt = "".join(texts[token] for token in turn.prompt_ids.tolist())
                assert [message["content"] in prompt for message in turn.messages] == [True]


def test_update_is_recorded_token_by_token(shared_run: Any) -> None:
    run = shared_run("guess", TOKENS)
    traces = files_of(run).trace_table(0).to_pylist()
    updates = files_of(run).update_table(0).to_pylist()
    trajectories = {each.uid: each.trajectory for episode in files_of(run).episodes(0) for each in episode.trajectories}
    trained = [each.outcome.trajectory for each in files_of(run).outcomes(0) if each.outcome.outcome == "trained"]
    for epoch in (0, 1):
        tokens = {row["trajectory"]: len(row["ids"]) for row in traces if row["epoch"] == epoch}
        assert tokens == {uid: trajectories[uid].response_length for uid in trained}
    assert {row["optimizer_step"] for row in traces} == {row["optimizer_step"] for row in updates}
    assert np.mean([row["loss"] for row in updates]) == pytest.approx(run.steps[0].metrics["actor/loss"], rel=1e-9)


@pytest.mark.long
def test_a_record_changes_no_number_of_a_run(train: Any) -> None:
    def numbers(record: str) -> list[dict[str, float]]:
        run = train("guess", {"rllm.record": record, "rllm.trainer.total_batches": 2})
        timed = ("time/", "perf/")
        return [{k: v for k, v in step.metrics.items() if not k.startswith(timed)} for step in run.steps]

    assert numbers("off") == numbers("outcomes") == numbers("tokens")


def test_record_is_removed_with_the_replaced_run(train: Any) -> None:
    run = train("lucky", SHORT)
    # The default is a record of outcomes.
    assert files_of(run).steps() == [0]
    assert files_of(run).episode_table(0).to_pylist()[0]["trajectories"][0]["ids"] is None
    again = train("lucky", SHORT | {"rllm.record": "off"})
    assert run.directory == again.directory
    assert not (run.directory / "record").exists()


def test_record_has_the_episodes_of_the_log(train: Any) -> None:
    run = train("lucky", SHORT | SEVERAL_BATCHES | {"rllm.record": "tokens", "rllm.episode_logging.log_episodes": True})

    ((_, file),) = find_episodes(run.directory).files
    recorded = [
        episode_to_json(each) | {"batch": number}
        for number, episodes in enumerate(read_batches(file))
        for each in episodes
    ]

    log = gzip.decompress((run.directory / "episodes/step_000000.jsonl.gz").read_bytes())
    assert recorded == [json.loads(line) for line in log.splitlines()]


@pytest.mark.parametrize(
    ("installed", "settings", "recorded"),
    [(None, {}, "outcomes"), (None, {"rllm.record": "tokens"}, "tokens"), (["rllm-local", "rllm"], {}, "off")],
)
def test_a_plan_says_what_is_recorded(installed: list[str] | None, settings: dict[str, Any], recorded: str) -> None:
    plan = plan_of({"rllm.env.name": "guess"} | settings, Registry.load(allow=installed))
    assert plan.recorded == recorded


def trained_on(train: Any, stored: Path) -> dict[str, float]:
    """Return the metrics of a step on all stored episodes of a run, without times."""
    settings = {
        "data.train_dataset": {"name": "stored", "path": str(stored)},
        "rllm.pipeline.replace": {"generate": "stored"},
        "rllm.algorithm.rollout_correction.tis_mode": "token",
        "rllm.trainer.experiment_name": "on_stored",
        "data.max_response_length": 4,
    }
    return {
        name: value
        for name, value in train("lucky", settings).metrics.items()
        if not name.startswith(("time/", "perf/", "progress/"))
    }


@pytest.mark.long
def test_training_on_a_run_reads_its_record(train: Any, shared_run: Any) -> None:
    run = shared_run("lucky", SHORT | {"rllm.record": "tokens"})
    assert trained_on(train, run.directory)["batch/episodes"] == len(run.episodes)


def test_a_run_says_what_sampled_its_episodes(train: Any) -> None:
    run = train("lucky", SHORT | {"rllm.record": "tokens", "sampling.train.temperature": 0.5})
    sampler = sampler_of(run.directory / "record/episodes/step_000000.parquet")
    assert sampler.temperature == 0.5
    assert sampler.tokenizer is not None

    with pytest.raises(RllmError, match=r"sampled at temperature 0\.5, and sampling\.train\.temperature is 1"):
        trained_on(train, run.directory)
