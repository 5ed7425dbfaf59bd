"""The order of stages: built in, edited, replaced, and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_error, expect_error

from rllm_core.errors import ConfigError, RllmError
from rllm_core.pipeline.graph import BUILT_IN

NAMES = ", ".join(BUILT_IN)


def _stages(plan: Callable[..., Any], settings: dict[str, Any]) -> list[str]:
    return [stage.plugin.name for stage in plan(settings).stages]


def _error(plan: Callable[..., Any], settings: dict[str, Any]) -> RllmError:
    with pytest.raises(RllmError) as caught:
        plan(settings)
    return caught.value


@pytest.fixture
def nothing(add_stage: Callable[..., None]) -> str:
    """Name of a stage that reads and writes nothing."""
    add_stage("nothing", lambda step: None)
    return "nothing"


def test_the_built_in_order_is_complete(plan: Callable[..., Any]) -> None:
    assert _stages(plan, {}) == list(BUILT_IN)


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([{"stage": "nothing", "after": "reject"}], ["reject", "nothing", "build_batch"]),
        ([{"stage": "nothing", "before": "reject"}], ["check_rewards", "nothing", "reject"]),
        ([{"stage": {"name": "nothing"}, "after": "reject"}], ["reject", "nothing", "build_batch"]),
        ([{"stage": "in-process/nothing", "after": "reject"}], ["reject", "nothing", "build_batch"]),
        (
            [{"stage": "nothing", "after": "group"}, {"stage": "nothing", "before": "nothing"}],
            ["group", "nothing", "nothing", "check_rewards"],
        ),
    ],
)
def test_stages_are_inserted_before_and_after_others(
    plan: Callable[..., Any], nothing: str, edits: list[Any], expected: list[str]
) -> None:
    names = _stages(plan, {"rllm.pipeline.insert": edits})
    start = names.index(expected[0])
    assert names[start : start + len(expected)] == expected
    assert [name for name in names if name != "nothing"] == list(BUILT_IN)


def test_the_first_and_last_place_can_be_taken(plan: Callable[..., Any], nothing: str) -> None:
    edits = [{"stage": nothing, "before": "generate"}, {"stage": nothing, "after": "log"}]
    assert _stages(plan, {"rllm.pipeline.insert": edits}) == [nothing, *BUILT_IN, nothing]


def test_stages_are_removed(plan: Callable[..., Any]) -> None:
    expected = [name for name in BUILT_IN if name not in ("compact_filter", "reject")]
    assert _stages(plan, {"rllm.pipeline.remove": ["reject", "compact_filter"]}) == expected


def test_stages_are_replaced_where_they_are(plan: Callable[..., Any], add_stage: Callable[..., None]) -> None:
    add_stage("my_reject", lambda step: None, reads="trajectory_groups", writes="trajectory_groups")
    expected = ["my_reject" if name == "reject" else name for name in BUILT_IN]
    assert _stages(plan, {"rllm.pipeline.replace": {"reject": "my_reject"}}) == expected


def test_edits_are_made_in_the_order_remove_replace_insert(plan: Callable[..., Any], nothing: str) -> None:
    edits = {
        "rllm.pipeline.insert": [{"stage": "log", "after": nothing}],
        "rllm.pipeline.replace": {"reject": nothing},
        "rllm.pipeline.remove": ["log"],
    }
    names = _stages(plan, edits)
    assert names[names.index(nothing) + 1] == "log"
    assert names.count("log") == 1


def test_the_whole_list_may_be_given(plan: Callable[..., Any]) -> None:
    assert _stages(plan, {"rllm.pipeline.stages": ["generate", {"name": "log"}]}) == ["generate", "log"]


def test_edits_apply_to_a_list_that_was_given(plan: Callable[..., Any], nothing: str) -> None:
    settings = {
        "rllm.pipeline.stages": ["generate", "log"],
        "rllm.pipeline.insert": [{"stage": nothing, "after": "generate"}],
    }
    assert _stages(plan, settings) == ["generate", nothing, "log"]


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        (
            {"rllm.pipeline.remove": ["rejekt"]},
            "unknown-stage",
            ["rllm.pipeline.remove", "'rejekt'", NAMES, "'reject'"],
        ),
        (
            {"rllm.pipeline.replace": {"grupp": "nothing"}},
            "unknown-stage",
            ["rllm.pipeline.replace.grupp", "'grupp'", NAMES, "'group'"],
        ),
        (
            {"rllm.pipeline.insert": [{"stage": "nothing", "after": "reject"}, {"stage": "nothing", "after": "zzz"}]},
            "unknown-stage",
            ["rllm.pipeline.insert[1]", "'zzz'", NAMES.replace("reject", "reject, nothing")],
        ),
        *(
            (
                {"rllm.pipeline.insert": [edit]},
                "bad-stage-edit",
                ["rllm.pipeline.insert[0]", edit, "{stage: NAME, after: NAME}", "{stage: NAME, before: NAME}"],
            )
            for edit in (
                {"stage": "nothing"},
                {"after": "reject"},
                {"stage": "nothing", "after": "reject", "before": "log"},
                {"stage": "nothing", "after": "reject", "size": 3},
                {"stage": "nothing", "behind": "reject"},
            )
        ),
    ],
)
def test_an_edit_that_cannot_be_made_says_which_and_why(
    plan: Callable[..., Any], nothing: str, settings: dict[str, Any], code: str, values: list[Any]
) -> None:
    with expect_error(ConfigError, code, *values):
        plan(settings)


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"rllm.pipeline.stages": ["generate", "lgo"]}, "rllm.pipeline.stages[1]: "),
        ({"rllm.pipeline.replace": {"reject": "rejct"}}, "rllm.pipeline.replace.reject: "),
        ({"rllm.pipeline.insert": [{"stage": "nothin", "after": "log"}]}, "rllm.pipeline.insert[0]: "),
        ({"rllm.pipeline.insert": [{"stage": None, "after": "log"}]}, "rllm.pipeline.insert[0]: "),
        (
            {"rllm.pipeline.insert": [{"stage": 3, "after": "log"}, {"stage": "nothing", "after": "log"}]},
            "rllm.pipeline.insert[0]: 3 is no stage.",
        ),
        (
            {"rllm.pipeline.insert": [{"stage": {"name": "nothing", "size": 1}, "after": "log"}]},
            "rllm.pipeline.insert[0]",
        ),
    ],
)
def test_a_stage_that_does_not_exist_is_a_config_error_with_its_place(
    plan: Callable[..., Any], nothing: str, settings: dict[str, Any], start: str
) -> None:
    error = _error(plan, settings)
    assert isinstance(error, ConfigError)
    assert error.message.startswith(start)


def test_a_hole_names_the_stage_and_what_it_lacks(plan: Callable[..., Any]) -> None:
    error = _error(plan, {"rllm.pipeline.remove": ["group"]})
    check_error(
        error, "stage-input-missing", "'check_rewards'", "'trajectory_groups'", "`rllm plugins list --kind stage`"
    )


def test_a_wrong_order_names_the_writer_that_comes_too_late(plan: Callable[..., Any]) -> None:
    stages = [*BUILT_IN]
    stages.remove("advantages")
    stages.insert(stages.index("log"), "advantages")
    error = _error(plan, {"rllm.pipeline.stages": stages})
    check_error(error, "stage-input-missing", "'update'", "'batch.advantages'", "'advantages'")


def test_a_stage_does_not_feed_itself(plan: Callable[..., Any], add_stage: Callable[..., None]) -> None:
    add_stage("selfish", lambda step: None, reads="scores", writes="scores")
    error = _error(plan, {"rllm.pipeline.insert": [{"stage": "selfish", "before": "log"}]})
    check_error(error, "stage-input-missing", "'selfish'", "'scores'")


@pytest.mark.parametrize("removed", BUILT_IN)
def test_each_built_in_stage_is_either_needed_or_can_be_left_out(plan: Callable[..., Any], removed: str) -> None:
    optional = {"greedy_baseline", "compact_filter", "reject", "update", "log"}
    settings = {"rllm.pipeline.remove": [removed]}
    if removed in optional:
        assert removed not in _stages(plan, settings)
    else:
        assert isinstance(_error(plan, settings), ConfigError)


def test_a_stage_can_be_moved(plan: Callable[..., Any]) -> None:
    names = _stages(plan, {"rllm.pipeline.move": [{"stage": "compact_filter", "before": "impute_names"}]})
    assert names[:3] == ["generate", "compact_filter", "impute_names"]
    assert sorted(names) == sorted(BUILT_IN)
    later = _stages(plan, {"rllm.pipeline.move": [{"stage": "generate", "before": "impute_names"}]})
    assert later == list(BUILT_IN)


def test_a_move_that_leaves_a_hole_says_which(plan: Callable[..., Any]) -> None:
    error = _error(plan, {"rllm.pipeline.move": [{"stage": "group", "after": "reject"}]})
    check_error(error, "stage-input-missing", "'check_rewards'", "'trajectory_groups'", "'group'")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"stage": "grop", "after": "reject"}, "stage 'grop'"),
        ({"stage": "group", "after": "rejct"}, "stage 'rejct'"),
        ({"stage": "group", "after": "group"}, "moves stage 'group' next to itself"),
        ({"stage": "group"}, "is {'stage': 'group'}"),
    ],
)
def test_a_move_that_makes_no_sense_is_explained(plan: Callable[..., Any], edit: dict[str, str], message: str) -> None:
    error = _error(plan, {"rllm.pipeline.move": [edit]})
    assert error.message.startswith("rllm.pipeline.move[0]")
    assert message in error.message


@pytest.mark.parametrize(
    ("move", "reader", "read"),
    [
        ({"stage": "reject", "after": "build_batch"}, "process", "batch"),
        ({"stage": "compact_filter", "after": "group"}, "check_rewards", "trajectory_groups"),
    ],
)
def test_an_order_in_which_a_stage_would_change_nothing_is_an_error(
    plan: Callable[..., Any], move: dict[str, str], reader: str, read: str
) -> None:
    error = _error(plan, {"rllm.pipeline.move": [move]})
    remedy = f"Move {move['stage']!r} before {move['after']!r}."
    check_error(error, "stage-order", repr(reader), repr(read), remedy)


def test_rewritten_field_is_no_longer_stale(plan: Callable[..., Any], add_stage: Callable[..., None]) -> None:
    add_stage("rebuild", lambda step: None, reads="trajectory_groups", writes="batch")
    add_stage("weigh", lambda step: None, reads="trajectory_groups", writes="trajectory_groups")
    edits = [{"stage": "weigh", "after": "build_batch"}, {"stage": "rebuild", "after": "weigh"}]
    assert "rebuild" in _stages(plan, {"rllm.pipeline.insert": edits})


def test_rollout_stages_come_first(plan: Callable[..., Any]) -> None:
    flags = [stage.plugin.is_rollout_stage for stage in plan({}).stages]
    assert [name for name, is_rollout_stage in zip(BUILT_IN, flags, strict=True) if is_rollout_stage] == [
        "generate",
        "impute_names",
        "greedy_baseline",
    ]


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
def test_rollout_stage_cannot_use_batch_or_weights(
    plan: Callable[..., Any], add_stage: Callable[..., None], record: dict[str, str], name: str
) -> None:
    add_stage("eager", lambda step: None, **record, is_rollout_stage=True)
    error = _error(plan, {"rllm.pipeline.insert": [{"stage": "eager", "after": "process"}]})
    assert isinstance(error, ConfigError)
    check_error(error, "stage-order", "'eager'", repr(name))


def test_rollout_stage_after_the_batch_is_rejected(plan: Callable[..., Any], add_stage: Callable[..., None]) -> None:
    add_stage("eager", lambda step: None, reads="episodes", is_rollout_stage=True)
    error = _error(plan, {"rllm.pipeline.insert": [{"stage": "eager", "before": "process"}]})
    check_error(error, "stage-order", "'eager'", "'batch'", "`is_rollout_stage=True`")


@pytest.mark.parametrize("place", [{"after": "generate"}, {"after": "greedy_baseline"}, {"before": "build_batch"}])
def test_stage_before_the_batch_may_generate(
    plan: Callable[..., Any], add_stage: Callable[..., None], place: dict[str, str]
) -> None:
    add_stage("patient", lambda step: None, reads="episodes")
    add_stage("eager", lambda step: None, reads="episodes", is_rollout_stage=True)
    for stage in ("patient", "eager"):
        assert stage in _stages(plan, {"rllm.pipeline.insert": [{"stage": stage, **place}]})
