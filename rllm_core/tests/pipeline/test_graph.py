"""The order of stages: built in, edited, replaced, and checked."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_core.pipeline.graph import BUILT_IN

NAMES = ", ".join(BUILT_IN)
INSERT, MOVE, REMOVE = "rllm.pipeline.insert", "rllm.pipeline.move", "rllm.pipeline.remove"
REPLACE, STAGES = "rllm.pipeline.replace", "rllm.pipeline.stages"
LATE_ADVANTAGES = [*(name for name in BUILT_IN if name not in ("advantages", "log")), "advantages", "log"]


@pytest.fixture(autouse=True)
def _stages(add_stage: Any) -> None:
    for name, reads, writes in (
        ("nothing", "", ""),
        ("my_reject", "trajectory_groups", "trajectory_groups"),
        ("selfish", "scores", "scores"),
        ("rebuild", "trajectory_groups", "batch"),
        ("patient", "episodes", ""),
    ):
        add_stage(name, lambda step: None, reads=reads, writes=writes)
    add_stage("eager", lambda step: None, reads="episodes", is_rollout_stage=True)


def _without(*removed: str) -> list[str]:
    return [name for name in BUILT_IN if name not in removed]


def _with(stage: str, index: int) -> list[str]:
    return [*BUILT_IN[:index], stage, *BUILT_IN[index:]]


REJECT = BUILT_IN.index("reject")
BATCH = BUILT_IN.index("build_batch") + 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, BUILT_IN),
        ({INSERT: [{"stage": "nothing", "after": "reject"}]}, _with("nothing", REJECT + 1)),
        ({INSERT: [{"stage": "nothing", "before": "reject"}]}, _with("nothing", REJECT)),
        ({INSERT: [{"stage": {"name": "nothing"}, "before": "generate"}]}, ["nothing", *BUILT_IN]),
        ({INSERT: [{"stage": "in-process/nothing", "after": "log"}]}, [*BUILT_IN, "nothing"]),
        (
            {INSERT: [{"stage": "nothing", "after": "log"}, {"stage": "patient", "before": "nothing"}]},
            [*BUILT_IN, "patient", "nothing"],
        ),
        ({REMOVE: ["reject", "compact_filter"]}, _without("reject", "compact_filter")),
        ({REPLACE: {"reject": "my_reject"}}, ["my_reject" if name == "reject" else name for name in BUILT_IN]),
        (  # remove, replace, insert
            {INSERT: [{"stage": "log", "after": "nothing"}], REPLACE: {"reject": "nothing"}, REMOVE: ["log"]},
            [*BUILT_IN[:REJECT], "nothing", "log", *BUILT_IN[REJECT + 1 : -1]],
        ),
        ({STAGES: ["generate", {"name": "log"}]}, ["generate", "log"]),
        (
            {STAGES: ["generate", "log"], INSERT: [{"stage": "nothing", "after": "generate"}]},
            ["generate", "nothing", "log"],
        ),
        (
            {MOVE: [{"stage": "compact_filter", "before": "impute_names"}]},
            ["generate", "compact_filter", *_without("generate", "compact_filter")],
        ),
        ({MOVE: [{"stage": "generate", "before": "impute_names"}]}, BUILT_IN),
        # The batch is built again, so the change of the groups has an effect.
        (
            {INSERT: [{"stage": "my_reject", "after": "build_batch"}, {"stage": "rebuild", "after": "my_reject"}]},
            [*BUILT_IN[:BATCH], "my_reject", "rebuild", *BUILT_IN[BATCH:]],
        ),
        *(({REMOVE: [name]}, _without(name)) for name in ("greedy_baseline", "update", "log")),
    ],
)
def test_stages_are_inserted_moved_replaced_and_removed(plan: Any, settings: Any, expected: Any) -> None:
    assert [stage.plugin.name for stage in plan(settings).stages] == list(expected)


BAD_EDITS = (
    {"stage": "nothing"},
    {"after": "reject"},
    {"stage": "nothing", "after": "reject", "before": "log"},
    {"stage": "nothing", "after": "reject", "size": 3},
    {"stage": "nothing", "behind": "reject"},
)


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({REMOVE: ["rejekt"]}, "unknown-stage", [REMOVE, "'rejekt'", NAMES, "'reject'"]),
        ({REPLACE: {"grupp": "nothing"}}, "unknown-stage", [f"{REPLACE}.grupp", "'grupp'", NAMES, "'group'"]),
        (
            {INSERT: [{"stage": "nothing", "after": "reject"}, {"stage": "nothing", "after": "zzz"}]},
            "unknown-stage",
            [f"{INSERT}[1]", "'zzz'", NAMES.replace("reject", "reject, nothing")],
        ),
        *(
            ({INSERT: [edit]}, "bad-stage-edit", [f"{INSERT}[0]", edit, "{stage: NAME, after: NAME}", "before: NAME}"])
            for edit in BAD_EDITS
        ),
        ({STAGES: ["generate", "lgo"]}, "unknown-plugin", [f"{STAGES}[1]: "]),
        ({REPLACE: {"reject": "rejct"}}, "unknown-plugin", [f"{REPLACE}.reject: "]),
        ({INSERT: [{"stage": "nothin", "after": "log"}]}, "unknown-plugin", [f"{INSERT}[0]: "]),
        ({INSERT: [{"stage": None, "after": "log"}]}, "bad-choice", [f"{INSERT}[0]: "]),
        (
            {INSERT: [{"stage": 3, "after": "log"}, {"stage": "nothing", "after": "log"}]},
            "bad-choice",
            [f"{INSERT}[0]: 3 is no stage."],
        ),
        ({INSERT: [{"stage": {"name": "nothing", "size": 1}, "after": "log"}]}, "unknown-option", [f"{INSERT}[0]"]),
        ({MOVE: [{"stage": "grop", "after": "reject"}]}, "unknown-stage", [f"{MOVE}[0]", "stage 'grop'"]),
        ({MOVE: [{"stage": "group", "after": "rejct"}]}, "unknown-stage", [f"{MOVE}[0]", "stage 'rejct'"]),
        ({MOVE: [{"stage": "group", "after": "group"}]}, "bad-stage-edit", [f"{MOVE}[0]", "'group' next to itself"]),
        ({MOVE: [{"stage": "group"}]}, "bad-stage-edit", [f"{MOVE}[0]", "is {'stage': 'group'}"]),
        # Stages that lack something.
        *(({REMOVE: [name]}, "stage-input-missing", []) for name in ("generate", "build_batch", "process")),
        *(({REMOVE: [name]}, "stage-input-missing", []) for name in ("check_rewards", "advantages", "impute_names")),
        (
            {REMOVE: ["group"]},
            "stage-input-missing",
            ["'check_rewards'", "'trajectory_groups'", "`rllm plugins list --kind stage`"],
        ),
        ({STAGES: LATE_ADVANTAGES}, "stage-input-missing", ["'update'", "'batch.advantages'", "'advantages'"]),
        ({INSERT: [{"stage": "selfish", "before": "log"}]}, "stage-input-missing", ["'selfish'", "'scores'"]),
        (
            {MOVE: [{"stage": "group", "after": "reject"}]},
            "stage-input-missing",
            ["'check_rewards'", "'trajectory_groups'", "'group'"],
        ),
        # Stages that would change nothing.
        (
            {MOVE: [{"stage": "reject", "after": "build_batch"}]},
            "stage-order",
            ["'process'", "'batch'", "Move 'reject' before 'build_batch'."],
        ),
        (
            {MOVE: [{"stage": "compact_filter", "after": "group"}]},
            "stage-order",
            ["'check_rewards'", "'trajectory_groups'", "Move 'compact_filter' before 'group'."],
        ),
        (
            {INSERT: [{"stage": "eager", "before": "process"}]},
            "stage-order",
            ["'eager'", "'batch'", "`is_rollout_stage=True`"],
        ),
    ],
)
def test_pipelines_that_cannot_run_are_refused(plan: Any, settings: Any, code: str, values: list[Any]) -> None:
    with expect_error(ConfigError, code, *values):
        plan(settings)


def test_rollout_stages_come_first(plan: Any) -> None:
    made = [stage.plugin.name for stage in plan({}).stages if stage.plugin.is_rollout_stage]
    assert made == ["generate", "impute_names", "greedy_baseline"]


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"reads": "batch"}, "batch"),
        ({"reads": "batch.old_logprobs"}, "batch.old_logprobs"),
        ({"writes": "batch.mine"}, "batch.mine"),
        ({"writes": "weights"}, "weights"),
    ],
    ids=str,
)
def test_rollout_stage_cannot_use_batch_or_weights(plan: Any, add_stage: Any, record: Any, name: str) -> None:
    add_stage("greedy", lambda step: None, **record, is_rollout_stage=True)
    with expect_error(ConfigError, "stage-order", "'greedy'", repr(name)):
        plan({INSERT: [{"stage": "greedy", "after": "process"}]})


@pytest.mark.parametrize("place", [{"after": "generate"}, {"after": "greedy_baseline"}, {"before": "build_batch"}])
@pytest.mark.parametrize("stage", ["patient", "eager"])
def test_stage_before_the_batch_may_generate(plan: Any, stage: str, place: dict[str, str]) -> None:
    assert stage in [made.plugin.name for made in plan({INSERT: [{"stage": stage, **place}]}).stages]
