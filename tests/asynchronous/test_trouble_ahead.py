"""An error in a batch ahead stops the run with this error."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_world import ahead

from rllm_core.data.types import Step
from rllm_core.errors import RllmError


def test_failed_rollouts_stop_the_run_unless_allowed(run: Any) -> None:
    settings = {**ahead(2), "rllm.workflow.retry_limit": 1, "script.dies_at": 2}
    with pytest.raises(RllmError, match="engine is dead"):
        run(settings)
    made = run({**settings, "rllm.workflow.raise_on_error": False})
    failed = [step.global_step for step in made.steps if step.skip_reason == "nothing_generated"]
    assert failed == [4]
    assert [step.weight_version for step in made.steps] == [1, 2, 3, 4, 4, 5]


def test_run_with_only_rejected_groups_ends(run: Any) -> None:
    mode = {"name": "group", "min_trajs_per_group": 99}
    made = run({**ahead(3), "rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": mode})
    assert [step.skip_reason for step in made.steps] == ["all_groups_rejected"] * 6
    assert made.backend.updates == []


def test_stopped_run_leaves_no_running_rollout(run: Any) -> None:
    made = run({**ahead(3), "data.train_batch_size": 1}, stop_after=2)
    assert len(made.backend.updates) == 2
    assert (made.loop.finished_steps, made.loop.stopped_early) == (2, True)
    assert (made.directory / "checkpoints" / "step_000002").is_dir()


@pytest.mark.parametrize("partial", [False, True], ids=["fixed", "latest"])
def test_workflow_without_versions_is_rejected_by_name(
    run: Any, monkeypatch: pytest.MonkeyPatch, partial: bool
) -> None:
    described = Step._describe

    def forgetful(step: Step, **fields: Any) -> None:
        described(step, **{**fields, "weight_version": 0, "version_spans": ()})

    monkeypatch.setattr(Step, "_describe", forgetful)
    with pytest.raises(RllmError, match=r"updates old|was requested from version") as caught:
        run(ahead(1, partial))
    assert "pass `weight_version`" in caught.value.hint
