"""Names and code of rLLM's documents, as users write them: the package, YAML, Python, estimators."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_printed, expect_error
from omegaconf import OmegaConf

import rllm_core
from rllm.api.classic import per_group
from rllm.config.layers import layer_from_file, layers_from_overrides
from rllm_core import (
    RLLM_ADV_ESTIMATOR_REGISTRY,
    AgentTrainer,
    AlgorithmConfig,
    UnifiedTrainer,
    build_train_config,
    get_rllm_adv_estimator,
    register_rllm_adv_estimator,
    rLLMAdvantageEstimator,
)
from rllm_core.algorithms.columns import build_estimator_input
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, Trajectory
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry, forget_in_process
from rllm_core.rollout.conversation import Conversation

from .conftest import Steps, plan_of

QUICK = {
    "rllm": {"rollout": {"n": 4}, "trainer": {"total_batches": 1, "val_before_train": False, "test_freq": -1}},
    "data": {"train_batch_size": 2, "max_response_length": 2},
}
ROWS = [{"number": number} for number in range(4)]
REWARDS = [np.array([1.0, 0.0, 2.0]), np.array([5.0, 1.0])]


class Answer(Workflow):
    """A solver with two turns and a judge, whose rewards depend on their responses."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        trajectories = [Trajectory("solver"), Trajectory("judge")]
        for trajectory, turns in zip(trajectories, (2, 1), strict=True):
            conversation = Conversation(self.context, trajectory, session=f"{uid}{trajectory.name}")
            try:
                for _ in range(turns):
                    conversation.add_observation(str(task["number"]))
                    await conversation.generate()
            finally:
                await conversation.close()
            trajectory.reward = float(sum(int(step.response_ids.sum()) for step in trajectory.steps) % 7)
        return Episode(id=uid, trajectories=trajectories)


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_stays_registered: None) -> None:
    monkeypatch.chdir(tmp_path)


def trained(algorithm: dict[str, Any] | None = None, **arguments: Any) -> TrainStep:
    """Return the single step of a run."""
    config = OmegaConf.merge(QUICK, {"rllm": {"algorithm": algorithm or {}}})
    steps = Steps()
    chosen = {"workflow_class": Answer, "train_dataset": ROWS, "observers": [steps], "overwrite": True}
    AgentTrainer(config=config, **chosen, **arguments).train()
    return steps.steps[-1]


# Names of the package


@pytest.mark.long
def test_every_name_is_the_packages_and_imported_lazily() -> None:
    assert {"AgentTrainer", "build_train_config", "AlgorithmConfig"} <= set(dir(rllm_core))
    script = (
        "import sys, rllm_core\n"
        "heavy = {'numpy', 'pydantic', 'omegaconf', 'torch', 'pluggy'}\n"
        "heavy |= {'rllm.api.trainer', 'rllm.api.registration'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "for name in dir(rllm_core):\n"
        "    getattr(rllm_core, name)\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["grpo", "GRPO", rLLMAdvantageEstimator.GRPO, "rllm-core/grpo"])
def test_estimator_is_found_by_any_spelling(name: Any) -> None:
    advantages, _ = get_rllm_adv_estimator(name)(REWARDS, AlgorithmConfig())
    expected = [(rewards - rewards.mean()) / (rewards.std() + 1e-6) for rewards in REWARDS]
    for own, other in zip(advantages, expected, strict=True):
        assert np.allclose(own, other)


def test_every_member_and_its_name_mean_the_same() -> None:
    for member in rLLMAdvantageEstimator:
        first, second = (get_rllm_adv_estimator(name)(REWARDS, None)[0] for name in (member.name, member))
        assert [array.tolist() for array in first] == [array.tolist() for array in second]


@pytest.mark.long
def test_registry_is_live_view_of_functions_by_name() -> None:
    assert {member.value for member in rLLMAdvantageEstimator} <= set(RLLM_ADV_ESTIMATOR_REGISTRY)
    assert "mine" not in RLLM_ADV_ESTIMATOR_REGISTRY
    before = len(RLLM_ADV_ESTIMATOR_REGISTRY)

    @register_rllm_adv_estimator("mine")
    def mine(rewards: list[np.ndarray], algorithm_config: AlgorithmConfig, **kwargs: Any) -> Any:
        return rewards, rewards

    assert RLLM_ADV_ESTIMATOR_REGISTRY["mine"] is mine
    assert len(RLLM_ADV_ESTIMATOR_REGISTRY) == before + 1
    assert dict(RLLM_ADV_ESTIMATOR_REGISTRY)["mine"] is mine
    assert RLLM_ADV_ESTIMATOR_REGISTRY[rLLMAdvantageEstimator.RLOO](REWARDS, None)[0][1].tolist() == [4.0, -4.0]
    forget_in_process("estimator", "mine")
    assert "mine" not in RLLM_ADV_ESTIMATOR_REGISTRY and len(RLLM_ADV_ESTIMATOR_REGISTRY) == before


@pytest.mark.long
def test_estimator_without_classic_signature_is_explained_error() -> None:
    assert "gae" not in RLLM_ADV_ESTIMATOR_REGISTRY and "gae" not in list(RLLM_ADV_ESTIMATOR_REGISTRY)
    with pytest.raises(KeyError, match="token"):
        RLLM_ADV_ESTIMATOR_REGISTRY["gae"]
    with pytest.raises(KeyError, match="'grpo'"):
        RLLM_ADV_ESTIMATOR_REGISTRY["grop"]
    assert RLLM_ADV_ESTIMATOR_REGISTRY.get("grop") is None
    for name, function in RLLM_ADV_ESTIMATOR_REGISTRY.items():
        assert callable(function), name


def test_name_of_two_packages_is_qualified_in_registry() -> None:
    @register_rllm_adv_estimator("opo")
    def opo(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return rewards, rewards

    assert {"rllm-estimators/opo", "in-process/opo"} <= set(RLLM_ADV_ESTIMATOR_REGISTRY)
    assert "opo" not in RLLM_ADV_ESTIMATOR_REGISTRY
    assert RLLM_ADV_ESTIMATOR_REGISTRY["in-process/opo"] is opo


# Estimators as the documents write them


NORM = "rllm.algorithm.norm_adv_by_std_in_grpo"


def test_option_is_only_for_estimators_that_read_it() -> None:
    register_rllm_adv_estimator("reading")(
        lambda rewards, **kwargs: [[each * kwargs.get("norm_adv_by_std_in_grpo", True) for each in rewards]] * 2
    )
    register_rllm_adv_estimator("deaf")(lambda rewards, **kwargs: (rewards, rewards))
    settings = {"rllm.algorithm.adv_estimator": "reading", NORM: False}
    assert plan_of(settings, Registry.load()).estimators.default.plugin.name == "reading"
    with expect_error(ConfigError, "unused-key", f"register it with config_keys={{'{NORM}'}}"):
        plan_of(settings | {"rllm.algorithm.adv_estimator": "deaf"}, Registry.load())


@pytest.mark.long
def advantages_of(step: TrainStep, role: str) -> list[tuple[Any, list[float]]]:
    """Return rewards and advantages of each group of a role. All tokens of a trajectory have the same advantage."""
    batch = step.filled_batch
    inputs = build_estimator_input(batch, np.ones(len(batch.groups), np.bool_))
    by_trajectory = []
    for start, end in zip(inputs.token_offsets[:-1], inputs.token_offsets[1:], strict=True):
        (value,) = set(batch.advantages[start:end][batch.loss_mask[start:end]].tolist())
        by_trajectory.append(value)
    values = per_group(np.array(by_trajectory), inputs.group_offsets)
    return [
        (np.array([trajectory.reward for trajectory in group.trajectories]), each.tolist())
        for group, each in zip(batch.groups, values, strict=True)
        if group.group_role == role
    ]


def test_registered_estimators_train_by_name_and_by_role() -> None:
    seen: list[Any] = []

    @register_rllm_adv_estimator("median_baseline", config_keys={NORM})
    def median_baseline(rewards: list[Any], algorithm_config: Any, **kwargs: Any) -> Any:
        seen.append((algorithm_config.norm_adv_by_std_in_grpo, algorithm_config.loss_fn, sorted(kwargs)))
        advantages = [group - np.median(group) for group in rewards]
        return advantages, advantages

    @register_rllm_adv_estimator("role_mean_baseline")
    def role_mean_baseline(rewards: list[Any], algorithm_config: Any, **kwargs: Any) -> Any:
        advantages = [group - np.concatenate(rewards).mean() for group in rewards]
        return advantages, advantages

    step = trained(
        {"adv_estimator": "median_baseline", "norm_adv_by_std_in_grpo": False, "loss_fn": "ppo"},
        traj_group_adv_estimator_map={"solver": ("role_mean_baseline", "importance_sampling")},
    )
    assert seen == [(False, "ppo", ["norm_adv_by_std_in_grpo", "traj_groups"])]
    solver = advantages_of(step, "solver")
    mean = np.concatenate([rewards for rewards, _ in solver]).mean()
    for rewards, advantages in solver:
        assert np.allclose(advantages, rewards - mean, rtol=1e-6)
    for rewards, advantages in advantages_of(step, "judge"):
        assert advantages == (rewards - np.median(rewards)).tolist()
    assert step.metrics["actor/grad_norm"] > 0
    assert step.weight_version == 1


def test_estimator_may_call_another_with_its_arguments() -> None:
    @register_rllm_adv_estimator("standing")
    def standing(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return get_rllm_adv_estimator("opo")(rewards, algorithm_config, **kwargs)

    standing_on, itself = (trained({"adv_estimator": each, "loss_fn": "ppo"}) for each in ("standing", "opo"))
    assert standing_on.filled_batch.advantages.tolist() == itself.filled_batch.advantages.tolist()


MODULE = """
import numpy as np
from rllm_core import register_rllm_adv_estimator

@register_rllm_adv_estimator("median")
def median(rewards, algorithm_config, **kwargs):
    advantages = [group - np.median(group) for group in rewards]
    return advantages, advantages
"""


@pytest.mark.long
def test_module_next_to_the_config_registers_chosen_estimator(forked_rllm: Any, tmp_path: Path) -> None:
    (tmp_path / "my_estimators.py").write_text(MODULE)
    (tmp_path / "my.yaml").write_text("rllm: {plugins: {import_modules: [my_estimators]}}\n")
    words = ("guess", "--config", "my.yaml", "rllm.rollout.n=2", "rllm.trainer.val_before_train=false")
    short = ("rllm.trainer.test_freq=-1", "rllm.trainer.total_batches=1", "data.train_batch_size=4")
    done = forked_rllm("train", *words, *short, "--estimator", "median")
    assert done.returncode == 0, done.stderr
    assert '"in-process"' in (tmp_path / "runs/rllm-training/guess-1/plugins.json").read_text()

    resumed = forked_rllm("train", "--resume", "rllm.trainer.total_batches=2")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after 1 of 2 steps" in resumed.stdout

    (tmp_path / "my_estimators.py").unlink()
    failed = forked_rllm("train", "--resume", "rllm.trainer.total_batches=3")
    assert failed.returncode == 2
    values = ("`rllm.plugins.import_modules`", "'my_estimators'", "no such module")
    check_printed(failed.stderr, "module-not-found", *values)


# Configuration

TIER_ONE = """
rllm:
  algorithm:
    norm_adv_by_std_in_grpo: false
    use_precomputed_advantage: true
    loss_fn: ppo
    lr_schedule: cosine
    warmup_steps_ratio: 0.1
  rejection_sample: {enable: true, min_partial_solve_tasks: 1, min_trajs_per_group: 2}
  compact_filtering:
    enable: true
    mask_timeout: true
    mask_error: true
    mask_max_response_length_exceeded: true
    mask_max_turns_exceeded: true
"""
"""The keys in the YAML of rLLM's documents."""


@pytest.mark.long
@pytest.mark.parametrize("backend", ["local", "tinker", "verl"])
def test_keys_in_yaml_of_documents_are_valid(backend: str, worlds: Registry, tmp_path: Path) -> None:
    file = tmp_path / "my_config.yaml"
    file.write_text(TIER_ONE)
    made = plan_of({"rllm.backend": backend, "rllm.env.name": "guess"}, worlds, [layer_from_file(file)])
    given = OmegaConf.load(file)
    assert OmegaConf.merge(made.composed.tree, given) == OmegaConf.create(made.composed.tree)


@pytest.mark.long
def test_built_config_equals_command_line_and_is_merged() -> None:
    Path("base.yaml").write_text("rllm: {algorithm: {norm_adv_by_std_in_grpo: false}}")
    sizes = {"group_size": 4, "batch_size": 2, "lr": 1e-3, "total_steps": 1, "val_freq": -1, "save_freq": 1}
    places = {"project": "words", "experiment": "first", "output_dir": "out", "config_file": "base.yaml"}
    config = build_train_config("tiny", **sizes, **places)
    config = OmegaConf.merge(config, OmegaConf.create({"rllm": {"env": {"name": "guess"}}}))
    config = OmegaConf.merge(config, {"rllm": {"trainer": {"val_before_train": False}}})
    steps = Steps()
    AgentTrainer(config=config, observers=[steps]).train()
    assert Path("out/words/first/config.yaml").is_file()
    assert sum(len(group.trajectories) for group in steps.steps[0].offered_groups) == 8


def test_enumeration_member_is_a_name_in_config() -> None:
    algorithm = {"adv_estimator": rLLMAdvantageEstimator.RLOO}
    for config in ({"rllm": {"algorithm": algorithm}}, OmegaConf.create({"rllm": {"algorithm": algorithm}})):
        trainer = UnifiedTrainer(config=config, workflow_class=Answer, train_dataset=ROWS, overwrite=True)
        trainer.shutdown()
        assert trainer.plan.composed.value("rllm.algorithm.adv_estimator") == "rloo"


@pytest.mark.parametrize(
    ("backend", "word", "meant"),
    [
        ("local", "algorithm.adv_estimator=rloo", "`rllm.algorithm.adv_estimator"),
        ("local", "algorithm.loss_fn={name: ppo}", "`rllm.algorithm.loss_fn.name"),
        ("tinker", "algorithm.use_rllm=true", "`rllm.algorithm.use_rllm"),
        ("local", "trainer.total_epochs=3", "`rllm.trainer.total_epochs"),
        ("tinker", "rejection_sample.enable=true", "`rllm.rejection_sample.enable"),
    ],
)
def test_key_without_prefix_gets_hint_at_right_key(
    backend: str, word: str, meant: str, worlds: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "my_config.yaml"
    key, _, value = word.partition("=")
    section, _, name = key.partition(".")
    file.write_text(f"{section}:\n  {name}: {value}\n")
    for layers in (layers_from_overrides([word]), [layer_from_file(file)]):
        with pytest.raises(ConfigError) as caught:
            plan_of({"rllm.backend": backend}, worlds, layers)
        assert f"Write {meant}" in str(caught.value)
        assert "verl" not in str(caught.value)


def test_all_keys_without_prefix_are_named_together(worlds: Registry) -> None:
    words = ["algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=false"]
    with pytest.raises(ConfigError, match=" and ".join(rf"`rllm\.{re.escape(word)}`" for word in words)):
        plan_of({}, worlds, layers_from_overrides(words))


def test_key_of_the_backend_belongs_to_the_backend(worlds: Registry) -> None:
    words = layers_from_overrides(["algorithm.adv_estimator=rloo"])
    assert plan_of({"rllm.backend": "verl"}, worlds, words).estimators.default.plugin.name == "rloo"


def test_keys_of_only_another_backend_are_rejected(worlds: Registry) -> None:
    with expect_error(ConfigError, "section-of-other-backend", "`trainer`", "backend verl"):
        plan_of({}, worlds, layers_from_overrides(["trainer.nnodes=2"]))
