"""Names and code of rLLM's documents, as users write them: the package, YAML, Python, estimators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from omegaconf import OmegaConf

import rllm_core
from rllm.config.layers import layer_from_file, layers_from_overrides
from rllm_core import (
    RLLM_ADV_ESTIMATOR_REGISTRY,
    AgentTrainer,
    AlgorithmConfig,
    TrajectoryGroup,
    UnifiedTrainer,
    build_train_config,
    get_rllm_adv_estimator,
    register_rllm_adv_estimator,
    rLLMAdvantageEstimator,
)
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, Trajectory
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins import in_process
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.conversation import Conversation

from .conftest import Steps, plan_of

QUICK = {
    "rllm": {"rollout": {"n": 4}, "trainer": {"total_batches": 1, "val_before_train": False, "test_freq": -1}},
    "data": {"train_batch_size": 2, "max_response_length": 2},
}
ROWS = [{"number": number} for number in range(4)]
REWARDS = [np.array([1.0, 0.0, 2.0]), np.array([5.0, 1.0])]


class Answer(Workflow):
    """A solver and a judge, whose rewards depend on their responses."""

    def __init__(self, context: Any, bonus: float = 0.0) -> None:
        super().__init__(context)
        self.bonus = bonus

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        trajectories = [Trajectory("solver"), Trajectory("judge")]
        for trajectory in trajectories:
            conversation = Conversation(self.context, trajectory, session=f"{uid}{trajectory.name}")
            try:
                conversation.add_observation(str(task["number"]))
                step = await conversation.generate()
            finally:
                await conversation.close()
            trajectory.reward = float(int(step.response_ids.sum()) % 5) + self.bonus
        return Episode(id=uid, trajectories=trajectories)


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = [(record.kind, record.name) for record in in_process.records()]
    yield
    for record in in_process.records():
        if (record.kind, record.name) not in before:
            in_process.forget(record.kind, record.name)


def trained(algorithm: dict[str, Any] | None = None, **arguments: Any) -> TrainStep:
    """Return the single step of a run."""
    config = OmegaConf.merge(QUICK, {"rllm": {"algorithm": algorithm or {}}})
    steps = Steps()
    AgentTrainer(
        config=config,
        workflow_class=Answer,
        train_dataset=ROWS,
        observers=[steps],
        overwrite=True,
        **arguments,
    ).train()
    return steps.steps[-1]


# Names of the package


@pytest.mark.long
def test_every_name_is_the_package_s_and_costs_nothing_until_asked_for() -> None:
    assert AlgorithmConfig().norm_adv_by_std_in_grpo is True
    assert {"AgentTrainer", "build_train_config", "AlgorithmConfig"} <= set(dir(rllm_core))
    script = (
        "import sys, rllm_core\n"
        "names = [name for name in dir(rllm_core) if not name.startswith('_')]\n"
        "heavy = {'numpy', 'pydantic', 'omegaconf', 'torch', 'pluggy'}\n"
        "heavy |= {'rllm.api.trainer', 'rllm.api.registration'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from rllm_core import AgentTrainer, UnifiedTrainer, TrajectoryGroup, build_train_config, AlgorithmConfig\n"
        "from rllm_core import rLLMAdvantageEstimator, RLLM_ADV_ESTIMATOR_REGISTRY\n"
        "for name in names:\n"
        "    getattr(rllm_core, name)\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["grpo", "GRPO", rLLMAdvantageEstimator.GRPO, "rllm-core/grpo"])
def test_an_estimator_is_got_by_any_spelling_of_its_name(name: Any) -> None:
    advantages, _ = get_rllm_adv_estimator(name)(REWARDS, AlgorithmConfig())
    expected = [(rewards - rewards.mean()) / (rewards.std() + 1e-6) for rewards in REWARDS]
    for own, other in zip(advantages, expected, strict=True):
        assert np.allclose(own, other)


@pytest.mark.parametrize("member", rLLMAdvantageEstimator)
def test_every_member_and_its_name_mean_the_same(member: rLLMAdvantageEstimator) -> None:
    first, second = (get_rllm_adv_estimator(name)(REWARDS, None)[0] for name in (member.name, member))
    assert [array.tolist() for array in first] == [array.tolist() for array in second]


@pytest.mark.long
def test_the_registry_is_a_live_view_from_names_to_functions() -> None:
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
    in_process.forget("estimator", "mine")
    assert "mine" not in RLLM_ADV_ESTIMATOR_REGISTRY and len(RLLM_ADV_ESTIMATOR_REGISTRY) == before


@pytest.mark.long
def test_what_has_no_function_in_the_classic_signature_is_no_key_and_it_is_said_why() -> None:
    assert "gae" not in RLLM_ADV_ESTIMATOR_REGISTRY and "gae" not in list(RLLM_ADV_ESTIMATOR_REGISTRY)
    with pytest.raises(KeyError, match="token"):
        RLLM_ADV_ESTIMATOR_REGISTRY["gae"]
    with pytest.raises(KeyError, match="'grpo'"):
        RLLM_ADV_ESTIMATOR_REGISTRY["grop"]
    assert RLLM_ADV_ESTIMATOR_REGISTRY.get("grop") is None
    for name, function in RLLM_ADV_ESTIMATOR_REGISTRY.items():
        assert callable(function), name


def test_a_name_that_two_packages_offer_is_qualified_in_the_registry() -> None:
    @register_rllm_adv_estimator("opo")
    def opo(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return rewards, rewards

    assert {"rllm-estimators/opo", "in-process/opo"} <= set(RLLM_ADV_ESTIMATOR_REGISTRY)
    assert "opo" not in RLLM_ADV_ESTIMATOR_REGISTRY
    assert RLLM_ADV_ESTIMATOR_REGISTRY["in-process/opo"] is opo


# Estimators as the documents write them


def rewards_only(rewards: list[np.ndarray], **kwargs: Any) -> Any:
    assert kwargs["algorithm_config"].adv_estimator == "as_written"
    return _role_mean(rewards, kwargs)


def with_optional_config(rewards: list[np.ndarray], algorithm_config: Any = None, **kwargs: Any) -> Any:
    assert algorithm_config.adv_estimator == "as_written"
    return _role_mean(rewards, kwargs)


def with_the_option_as_a_parameter(
    rewards: list[np.ndarray], norm_adv_by_std_in_grpo: Any = True, **kwargs: Any
) -> Any:
    return _role_mean(rewards, {**kwargs, "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo})


def with_an_option_of_its_own(rewards: list[np.ndarray], scale: float = 1.0, **kwargs: Any) -> Any:
    assert scale == 1.0
    return _role_mean(rewards, kwargs)


def _role_mean(rewards: list[np.ndarray], kwargs: dict[str, Any]) -> Any:
    assert [len(group.trajectories) for group in kwargs["traj_groups"]] == [len(each) for each in rewards]
    centered = [each - np.concatenate(rewards).mean() for each in rewards]
    scale = 1.0 if kwargs["norm_adv_by_std_in_grpo"] else 10.0
    return [each * scale for each in centered], [each * scale for each in centered]


FORMS = (rewards_only, with_optional_config, with_the_option_as_a_parameter, with_an_option_of_its_own)


@pytest.mark.long
@pytest.mark.parametrize("function", FORMS, ids=lambda function: function.__name__)
def test_every_form_of_an_estimator_is_given_the_option_that_the_documents_name(function: Any) -> None:
    register_rllm_adv_estimator("as_written", config_keys={"rllm.algorithm.norm_adv_by_std_in_grpo"})(function)
    largest = []
    for norm in (True, False):
        step = trained({"adv_estimator": "as_written", "norm_adv_by_std_in_grpo": norm})
        largest.append(max(abs(step.metrics[f"advantage/{role}/max"]) for role in ("solver", "judge")))
    assert largest[0] > 0
    assert largest[1] == pytest.approx(10 * largest[0])


@pytest.mark.parametrize(
    "reading",
    [
        lambda rewards, **kwargs: [[each * kwargs.get("norm_adv_by_std_in_grpo", True) for each in rewards]] * 2,
        lambda rewards, config, **kwargs: [[each * config.norm_adv_by_std_in_grpo for each in rewards]] * 2,
        lambda rewards, norm_adv_by_std_in_grpo=True, **kwargs: (rewards, rewards),
        lambda rewards, config, **kwargs: [[each * kwargs["norm_adv_by_std_in_grpo"] for each in rewards]] * 2,
    ],
)
def test_an_estimator_that_reads_the_option_may_be_given_it(reading: Any) -> None:
    register_rllm_adv_estimator("reading")(reading)
    settings = {"rllm.algorithm.adv_estimator": "reading", "rllm.algorithm.norm_adv_by_std_in_grpo": False}
    assert plan_of(settings, Registry.load()).estimators.default.plugin.name == "reading"


def test_one_that_does_not_read_it_is_refused_with_the_word_that_says_it_does() -> None:
    register_rllm_adv_estimator("deaf")(lambda rewards, **kwargs: (rewards, rewards))
    settings = {"rllm.algorithm.adv_estimator": "deaf", "rllm.algorithm.norm_adv_by_std_in_grpo": False}
    with pytest.raises(ConfigError, match=r"register it with config_keys=\{'rllm.algorithm.norm_adv_by_std_in_grpo'\}"):
        plan_of(settings, Registry.load())


def test_what_fits_no_form_is_refused_when_it_is_registered() -> None:
    for function in (lambda rewards: rewards, lambda rewards, scale=1.0: rewards, lambda inputs, params: inputs):
        call = "f(rewards, algorithm_config, traj_groups=…)"
        with expect_error(PluginError, "bad-estimator-signature", call):
            register_rllm_adv_estimator("mine")(function)


@pytest.mark.long
@pytest.mark.parametrize("name", ["grpo", "opo"])
def test_estimator_may_call_a_different_one_with_its_arguments(name: str) -> None:
    @register_rllm_adv_estimator("standing")
    def standing(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return get_rllm_adv_estimator(name)(rewards, algorithm_config, **kwargs)

    standing_on, itself = (trained({"adv_estimator": each, "loss_fn": "ppo"}) for each in ("standing", name))
    assert standing_on.filled_batch.advantages.tolist() == itself.filled_batch.advantages.tolist()


# Configuration

TIER_ONE = {
    "adv_estimator": "rllm: {algorithm: {adv_estimator: rloo}}",
    "norm": "rllm: {algorithm: {norm_adv_by_std_in_grpo: false}}",
    "precomputed": "rllm: {algorithm: {use_precomputed_advantage: true}}",
    "loss": "rllm: {algorithm: {loss_fn: ppo, lr_schedule: cosine, warmup_steps_ratio: 0.1}}",
    "rejection": "rllm: {rejection_sample: {enable: true, min_partial_solve_tasks: 1, min_trajs_per_group: 2}}",
    "filtering": "rllm: {compact_filtering: {enable: true, mask_timeout: true, mask_error: true, "
    "mask_max_response_length_exceeded: true, mask_max_turns_exceeded: true}}",
}


@pytest.mark.long
@pytest.mark.parametrize("backend", ["local", "tinker", "verl"])
@pytest.mark.parametrize("text", TIER_ONE.values(), ids=TIER_ONE)
def test_each_yaml_of_the_documents_is_a_configuration(
    text: str, backend: str, worlds: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "my_config.yaml"
    file.write_text(text)
    made = plan_of({"rllm.backend": backend, "rllm.env.name": "guess"}, worlds, [layer_from_file(file)])
    given = OmegaConf.load(file)
    assert OmegaConf.merge(made.composed.tree, given) == OmegaConf.create(made.composed.tree)


@pytest.mark.long
def test_a_configuration_is_built_as_the_command_line_does_and_merged_over() -> None:
    Path("base.yaml").write_text(TIER_ONE["norm"])
    config = build_train_config(
        "tiny",
        group_size=4,
        batch_size=2,
        lr=1e-3,
        total_steps=1,
        val_freq=-1,
        save_freq=1,
        project="words",
        experiment="first",
        output_dir="out",
        config_file="base.yaml",
    )
    config = OmegaConf.merge(config, OmegaConf.create({"rllm": {"env": {"name": "guess"}}}))
    config = OmegaConf.merge(config, {"rllm": {"trainer": {"val_before_train": False}}})
    steps = Steps()
    AgentTrainer(config=config, observers=[steps]).train()
    assert Path("out/words/first/config.yaml").is_file()
    assert sum(len(group.trajectories) for group in steps.steps[0].offered_groups) == 8


def test_a_member_of_the_enumeration_is_a_name_in_a_configuration_too() -> None:
    algorithm = {"adv_estimator": rLLMAdvantageEstimator.RLOO}
    for config in ({"rllm": {"algorithm": algorithm}}, OmegaConf.create({"rllm": {"algorithm": algorithm}})):
        trainer = UnifiedTrainer(config=config, workflow_class=Answer, train_dataset=ROWS, overwrite=True)
        trainer.shutdown()
        assert trainer.plan.composed.value("rllm.algorithm.adv_estimator") == "rloo"


@pytest.mark.parametrize("backend", ["local", "tinker"])
@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("algorithm.adv_estimator=rloo", "`rllm.algorithm.adv_estimator"),
        ("algorithm.norm_adv_by_std_in_grpo=false", "`rllm.algorithm.norm_adv_by_std_in_grpo"),
        ("algorithm.use_rllm=true", "`rllm.algorithm.use_rllm"),
        ("algorithm.loss_fn={name: ppo}", "`rllm.algorithm.loss_fn.name"),
        ("trainer.total_epochs=3", "`rllm.trainer.total_epochs"),
        ("rejection_sample.enable=true", "`rllm.rejection_sample.enable"),
        ("compact_filtering.enable=true", "`rllm.compact_filtering.enable"),
    ],
)
def test_a_key_without_its_prefix_is_told_the_key_and_no_other_backend(
    word: str, meant: str, backend: str, worlds: Registry, tmp_path: Path
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


def test_all_keys_without_their_prefix_are_named_at_once(worlds: Registry) -> None:
    words = ["algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=false"]
    with pytest.raises(
        ConfigError, match=r"`rllm\.algorithm\.adv_estimator=rloo` and `rllm\.algorithm\.norm_adv_by_std_in_grpo=false`"
    ):
        plan_of({}, worlds, layers_from_overrides(words))


def test_where_the_backend_has_the_key_it_is_the_backend_s(worlds: Registry) -> None:
    words = layers_from_overrides(["algorithm.adv_estimator=rloo"])
    assert plan_of({"rllm.backend": "verl"}, worlds, words).estimators.default.plugin.name == "rloo"


def test_keys_of_only_a_different_backend_are_its_own(worlds: Registry) -> None:
    with expect_error(ConfigError, "section-of-other-backend", "`trainer`", "backend verl"):
        plan_of({}, worlds, layers_from_overrides(["trainer.nnodes=2"]))


# Hooks of Python


def test_the_hooks_of_python_are_used_as_written() -> None:
    seen: list[Any] = []

    def by_task(episodes: list[Episode], transform_config: Any, compact_filtering_config: Any = None) -> Any:
        groups: dict[str, list[Any]] = {}
        for episode in episodes:
            for trajectory in episode.trajectories:
                groups.setdefault(f"{episode.task_id}:{trajectory.name}", []).append((episode, trajectory))
        made = [
            TrajectoryGroup(
                trajectories=[trajectory for _, trajectory in members],
                group_id=key,
                metadata=[{"task_id": e.task_id, "rollout_idx": e.rollout_idx} for e, _ in members],
            )
            for key, members in groups.items()
        ]
        seen.append((episodes, made))
        return made

    step = trained(
        {"use_rllm": True},
        workflow_args={"bonus": 7.0},
        traj_grouping_hook=by_task,
        traj_group_adv_estimator_map={"solver": rLLMAdvantageEstimator.GRPO, "judge": "reinforce"},
    )
    ((episodes, groups),) = seen
    generated = {id(trajectory) for episode in episodes for trajectory in episode.trajectories}
    assert {id(trajectory) for group in groups for trajectory in group.trajectories} == generated, "passed by reference"
    assert all(trajectory.reward >= 7.0 for group in groups for trajectory in group.trajectories)
    assert all(len(group.metadata) == len(group.trajectories) == 4 for group in groups)
    assert step.metrics["advantage/judge/min"] >= 7.0, "reinforce takes nothing off"
    assert step.metrics["advantage/solver/min"] < 0.0
    names = (
        "global_step epoch total_steps is_training weight_version metrics timing_dict episodes trajectory_groups batch"
    )
    assert all(hasattr(step, name) for name in names.split())
