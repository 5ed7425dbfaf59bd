"""Runs record what became of every trajectory; the sums are those of the metrics."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rllm_core.data.codec import episode_to_json
from rllm_core.plugins.registry import Registry
from rllm_record.steps import RecordedFate, StepFiles
from rllm_rescore.reading import read_file
from rllm_rescore.source import find_episodes

REJECTING = {"rllm.rejection_sample.enable": True, "data.train_batch_size": 4, "rllm.rollout.n": 4}
MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "group": {"rllm.rejection_sample.mode": "group"},
    "episode": {"rllm.rejection_sample.mode": "episode", "rllm.rejection_sample.min_partial_solve_tasks": 3},
    "dynamic": {"rllm.rejection_sample.mode": "dynamic", "rllm.rejection_sample.max_gen_batches": 3},
    "masks": {"rllm.mask_truncated_samples": True, "rllm.agent.overlong_filter": True},
}
SEEN = {
    "none": {"trained"},
    "group": {"trained", "dropped"},
    "episode": {"trained", "waiting"},
    "dynamic": {"trained", "waiting", "dropped"},
    "masks": {"trained", "masked"},
}
"""Fates that runs of these settings have."""


def files_of(run: Any) -> StepFiles:
    return StepFiles(run.folder / "record")


def groups_of(fates: list[RecordedFate], fate: str, rule: str = "") -> int:
    """How many groups of trajectories have this fate by this rule."""
    chosen = [each.fate for each in fates if each.fate.fate == fate and each.fate.rule.startswith(rule)]
    return len({frozenset((each.trajectory, *each.peers)) for each in chosen})


@pytest.mark.parametrize("mode", MODES)
def test_every_trajectory_has_one_fate_and_the_sums_are_those_of_the_metrics(train: Any, mode: str) -> None:
    settings = (REJECTING if mode in ("group", "episode", "dynamic") else {}) | MODES[mode]
    run = train("lucky", settings | {"rllm.trainer.total_batches": 4})

    waited, seen = set[str](), set[str]()
    for step in run.steps:
        fates = files_of(run).fates(step.global_step)
        uids = [each.fate.trajectory for each in fates]
        played = files_of(run).episode_table(step.global_step).to_pylist()
        assert len(uids) == len(set(uids))
        assert set(uids) == waited | {each["uid"] for episode in played for each in episode["trajectories"]}
        rules = Counter(each.fate.rule for each in fates)
        assert not {rule for rule in rules if rule.startswith(("unexplained", "skipped"))}
        metrics = step.metrics
        assert groups_of(fates, "waiting") == metrics["batch/groups_waiting"]
        assert groups_of(fates, "trained") == metrics["batch/groups_after_filter"]
        for name, count in metrics.items():
            if name.startswith("batch/groups_dropped_"):
                reason = name.removeprefix("batch/groups_dropped_")
                assert groups_of(fates, "dropped", f"reject/{reason}") == count
            elif name.startswith("batch/masked_"):
                assert rules[f"compact_filter/{name.removeprefix('batch/masked_')}"] == count
        seen |= {each.fate.fate for each in fates}
        waited = {each.fate.trajectory for each in fates if each.fate.fate == "waiting"}
    assert seen == SEEN[mode]


def test_a_run_records_fates_unless_told_otherwise(train: Any) -> None:
    run = train("lucky", {})
    assert files_of(run).steps() == [0]
    assert files_of(run).episode_table(0).to_pylist()[0]["trajectories"][0]["ids"] is None


def test_tokens_are_recorded_as_they_were_trained_on(train: Any) -> None:
    run = train("lucky", {"rllm.record": "tokens"})
    recorded = [each.episode for each in files_of(run).episodes(0)]
    for found, played in zip(recorded, run.episodes, strict=True):
        assert found.id == played.id
        for one, other in zip(found.trajectories, played.trajectories, strict=True):
            assert one.tokens.ids.tolist() == other.tokens.ids.tolist()
            assert one.tokens.logprobs.tobytes() == other.tokens.logprobs.tobytes()
            assert [step.text for step in one.steps] == [step.text for step in other.steps]


def test_texts_are_recorded_so_that_no_tokenizer_is_needed(train: Any) -> None:
    run = train("guess", {"rllm.record": "tokens"})
    texts = files_of(run).vocabulary(0)
    for episode in files_of(run).episodes(0):
        for trajectory in episode.episode.trajectories:
            for turn in trajectory.steps:
                reply = "".join(texts[token] for token in turn.response_ids.tolist())
                assert turn.text == re.sub("<[a-z]+>", "", reply)
                prompt = "".join(texts[token] for token in turn.prompt_ids.tolist())
                assert [message["content"] in prompt for message in turn.messages] == [True]


def test_nothing_is_recorded_where_that_is_asked_for(train: Any) -> None:
    run = train("lucky", {"rllm.record": "off"})
    assert not (run.folder / "record").exists()


def test_a_record_goes_with_the_run_that_another_replaces(train: Any, tmp_path: Path) -> None:
    run = train("lucky", {"rllm.trainer.total_batches": 2})
    again = train("lucky", {"rllm.record": "off"})
    assert run.folder == again.folder
    assert not (run.folder / "record").exists()


@pytest.mark.parametrize("mode", ["none", "dynamic"])
def test_rescore_reads_a_record_as_it_reads_a_log(train: Any, mode: str) -> None:
    settings = (REJECTING if mode == "dynamic" else {}) | MODES[mode]
    run = train("lucky", settings | {"rllm.record": "tokens", "rllm.episode_logging.log_episodes": True})

    recorded, logged = (
        [[episode_to_json(each) for each in played] for played in read_file(run.folder / file).rounds]
        for file in ("record/episodes/step_000000.parquet", "episodes/step_000000.jsonl.gz")
    )

    assert recorded == logged
    assert find_episodes(run.folder).files == ((0, run.folder / "record/episodes/step_000000.parquet"),)


@pytest.mark.parametrize(
    ("installed", "settings", "recorded"),
    [(None, {}, "fates"), (None, {"rllm.record": "tokens"}, "tokens"), (["rllm-local", "rllm-envs"], {}, "off")],
)
def test_a_plan_says_what_is_recorded(
    planned: Any, installed: list[str] | None, settings: dict[str, Any], recorded: str
) -> None:
    plan = planned({"rllm.env.name": "guess"} | settings, Registry.load(allow=installed))
    assert plan.recorded == recorded
