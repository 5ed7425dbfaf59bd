"""A run's episodes under several estimators: as in training, step by step, and with nothing written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.builtin.rescoring.estimators import RescoredGroups, label, read_stored_config
from rllm.cli.main import main
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.data.types import TerminationReason
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

Rescore = Callable[..., RescoredGroups]
Keep = Callable[..., Path]


def _advantages(result: RescoredGroups, index: int) -> dict[tuple[int, str], list[float]]:
    return {(group.step, group.group_id): group.advantages[index].round(4).tolist() for group in result.groups}


def test_every_estimator_gives_each_trajectory_an_advantage(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 0, 0, 1], "u": [1, 1, 1, 1]})
    result = rescored("grpo", "rloo", "reinforce", "stranger")
    assert _advantages(result, 0)[0, "t:agent"] == pytest.approx([-0.5773, -0.5773, -0.5773, 1.732], abs=1e-3)
    assert _advantages(result, 1)[0, "t:agent"] == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1], abs=1e-3)
    assert _advantages(result, 2)[0, "t:agent"] == [0, 0, 0, 1]
    assert _advantages(result, 3)[0, "t:agent"] == [0, 0, 0, 0.5]
    assert [group.signal.tolist() for group in result.groups] == [[True] * 4, [False, False, True, True]]
    assert result.groups[0].trajectories == tuple(f"t:{index}/agent" for index in range(4))


def test_estimators_of_wider_scope_see_one_step(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1], "u": [0, 1]})
    keep(1, {"t": [0, 1], "u": [0, 9]})
    found = _advantages(rescored("grpo", "reinforce_plus_plus_baseline"), 1)
    assert found[0, "t:agent"] == pytest.approx([-1, 1], abs=1e-3)
    assert found[1, "t:agent"] == pytest.approx([-0.1562, 0.1562], abs=1e-3)


def test_rollout_batches_of_a_step_are_grouped_separately(rescored: Rescore, keep: Keep) -> None:
    keep(0, {"t": [0, 1]}, {"t": [5, 9], "u": [0, 1]})
    result = rescored("grpo", "reinforce_plus_plus_baseline")
    assert [group.rewards.tolist() for group in result.groups] == [[0, 1], [5, 9], [0, 1]]
    assert [group.advantages[0].round(3).tolist() for group in result.groups] == [[-1, 1]] * 3
    # The scope role compares all rollout batches of the step.
    assert result.groups[1].advantages[1, 1] == 4 * result.groups[2].advantages[1, 1]


def test_own_estimators_are_the_reference(rescored: Rescore, keep: Keep, configure: Any) -> None:
    keep(0, {"t": [0, 1, None]}, roles=("solver", "judge"))
    algorithm: dict[str, Any] = {"adv_estimator": "rloo", "on_missing_reward": "drop"}
    configure({"rllm": {"algorithm": {**algorithm, "estimator_map": {"judge": "reinforce"}}}, "model": {"of": "tiny"}})
    result = rescored("grpo")
    labels = [[label(each.get(role)) for role in ("solver", "judge")] for each in result.estimators]
    assert labels == [["rloo", "reinforce"], ["grpo", "grpo"]]
    assert _advantages(result, 0) == {(0, "t:solver"): [-1, 1], (0, "t:judge"): [0, 1]}


def test_masked_rollouts_have_no_advantage(rescored: Rescore, keep: Keep, configure: Callable[..., None]) -> None:
    keep(0, {"t": [0, 1]}, reason=TerminationReason.TIMEOUT)
    configure({"rllm": {"compact_filtering": {"enable": True}}})
    assert rescored("grpo", "rloo").groups == ()


def test_rollouts_without_tokens_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "1.jsonl"
    file.write_text(json.dumps({"input": "a", "output": "b", "gts": "", "score": 1.0, "step": 1}))
    assert main(["rescore", str(file), "--estimator", "grpo"]) == 0
    assert "no rollout has sampled tokens" in capsys.readouterr().err


def test_estimator_that_needs_a_model_is_an_error(rescored: Rescore, keep: Keep, registry: Registry) -> None:
    def estimate(inputs: AdvantageInput, params: NoParams) -> Advantages:
        raise AssertionError

    needs = frozenset({"values"})
    registry.add(EstimatorPlugin(name="gae", summary="For tests.", load=lambda: estimate, needs=needs))
    keep(0, {"t": [0, 1]})
    with expect_error(ConfigError, "missing-estimator-input", "'gae'", "values"):
        rescored("grpo", "gae")


def test_config_of_a_different_version_shows_its_keys(run: Path, configure: Callable[..., None]) -> None:
    configure({"rllm": {"algorithm": {"adv_estimtor": "grpo"}}, "model": {"name": "what a backend wants"}})
    with expect_error(ConfigError, "unknown-key", "adv_estimtor"):
        read_stored_config(run)


def test_command_prints_a_table_and_writes_nothing(keep: Keep, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step, rewards in enumerate(([0, 0, 0, 1], [1, 1, 0.5, 1])):
        keep(step, {"task": rewards}, lengths={"task": [1, 2, 3, 4]})
    before = _digests(run)
    assert main(["rescore", str(run), "--estimator", "reinforce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["agent", "grpo", "0", "of", "2", "0.866", "reference"]
    assert lines[2].split() == ["agent", "reinforce", "0", "of", "2", "0.562", "50.0%", "12.5%", "+0.701"]
    assert lines[-2].split()[-4:] == ["task:2/agent", "0.500", "-1.732", "+0.500"]
    assert _digests(run) == before


def test_json_has_advantages_of_all_trajectories(keep: Keep, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(0, {"task": [0, 0, 0, 1]})
    assert main(["rescore", str(run), "--estimator", "reinforce", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert group["rewards"] == [0, 0, 0, 1]
    assert [each["estimator"] for each in group["advantages"]] == ["grpo", "reinforce"]
    assert group["advantages"][1]["values"] == [0, 0, 0, 1]


def _digests(run: Path) -> dict[str, str]:
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
