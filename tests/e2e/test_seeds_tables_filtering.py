"""rLLM's tables of keys, third part: flags, filtering, rejection, SDK, episodes on disk. Each row's effect is seen."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.planning.plan import RunPlan
from rllm.planning.unused_keys import core_keys
from rllm.training.setup import open_runner
from rllm_core.algorithms.filtering import compact_filter, masked_reasons
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.rollout import RolloutRequest
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.schema.run_config import RunConfig

from .conftest import plan_of

TABLE: dict[str, Any] = {
    "rllm.disable_thinking": False,
    "rllm.accumulate_reasoning": False,
    "rllm.mask_truncated_samples": False,
    "rllm.filter_token_mismatch": True,
    "rllm.compact_filtering.enable": False,
    "rllm.compact_filtering.mask_max_prompt_length_exceeded": True,
    "rllm.compact_filtering.mask_max_response_length_exceeded": True,
    "rllm.compact_filtering.mask_env_done": False,
    "rllm.compact_filtering.mask_max_turns_exceeded": True,
    "rllm.compact_filtering.mask_timeout": True,
    "rllm.compact_filtering.mask_unknown": False,
    "rllm.compact_filtering.mask_error": True,
    "rllm.rejection_sample.enable": False,
    "rllm.rejection_sample.multiplier": 1,
    "rllm.rejection_sample.min_partial_solve_tasks": 1,
    "rllm.rejection_sample.min_trajs_per_group": 2,
    "rllm.sdk.store.path": "~/.rllm/traces.db",
    "rllm.sdk.processing.groupby_key": None,
    "rllm.sdk.processing.traj_name_key": None,
    "rllm.sdk.proxy.host": "127.0.0.1",
    "rllm.sdk.proxy.port": 4000,
    "rllm.sdk.proxy.mode": "subprocess",
    "rllm.sdk.proxy.admin_token": "my-shared-secret",
    "rllm.episode_logging.log_episodes": False,
    "rllm.episode_logging.episode_log_dir": "logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}",
}
"""Name and default of each row."""
OTHER_DEFAULTS = dict.fromkeys(
    ("rllm.sdk.proxy.admin_token", "rllm.episode_logging.episode_log_dir", "rllm.sdk.store.path")
)
"""Decision 14: no public secret, and episodes and calls belong to the folder of their run."""
MASKS = {name: default for name, default in TABLE.items() if ".compact_filtering.mask_" in name}
ONE_TOKEN = {"data.max_response_length": 1}
SHOWN: set[str] = set()


def shows(*names: str) -> Callable[[Any], Any]:
    """What a test is about."""
    SHOWN.update(names)
    return lambda test: test


def test_every_row_is_shown_to_have_an_effect_or_to_be_refused() -> None:
    assert set(TABLE) == SHOWN


def test_names_and_defaults_are_those_of_the_table_but_for_two() -> None:
    defaults = {key.dotted: key.default for key in core_keys(RunConfig())}
    assert {name: defaults[name] for name in TABLE} == TABLE | OTHER_DEFAULTS


# Flags of trajectories


@shows("rllm.disable_thinking")
def test_thinking_can_be_switched_off_in_the_chat_template(train: Any, thinking_model: Path) -> None:
    from rllm_local.tiny import build_tokenizer

    def prompt(**settings: bool) -> str:
        model = {"model.name": str(thinking_model), "rllm.env.env_args.prompt": "number", **ONE_TOKEN}
        run = train("sum", model | {f"rllm.{name}": value for name, value in settings.items()})
        return str(build_tokenizer().decode(run.episodes[0].trajectories[0].steps[0].prompt_ids))

    assert prompt() == "number?"
    assert prompt(disable_thinking=True) == "number"
    with expect_error(ConfigError, "no-thinking-switch", "`enable_thinking`"):
        train("sum", {"rllm.disable_thinking": True})


@dataclass
class Thinker:
    """An engine whose model thinks of a number, and then says another."""

    renderer: Renderer
    max_context: int = 99

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        ids = np.array(self.renderer.tokenizer.encode("<think>7</think>8<end>", add_special_tokens=False), np.int32)
        return Completion(
            token_ids=ids, logprobs=np.zeros(len(ids), np.float32), finish_reason="stop", weight_version=0
        )

    async def end_session(self, session: str) -> None:
        pass


@shows("rllm.accumulate_reasoning")
@pytest.mark.parametrize(
    ("keep", "second"), [(False, "guess8<end>is"), (True, "guess<think>7</think>8<end>is")], ids=["cut out", "kept"]
)
def test_thoughts_are_kept_in_later_prompts_when_asked_for(worlds: Registry, keep: bool, second: str) -> None:
    from rllm_local.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    engine: Any = Thinker(TemplateRenderer(tokenizer, [tokenizer.eos_token_id]))
    plan = plan_of({"rllm.env.name": "paying", "rllm.accumulate_reasoning": keep}, worlds)
    order = RolloutRequest(tasks=[Task(id="t")], rollouts=1, sampling=SamplingParams(max_tokens=9), label="train")

    async def rolled_out() -> list[Episode]:
        async with open_runner(plan, engine) as runner:
            return await runner.run(order)

    (episode,) = asyncio.run(rolled_out())
    assert tokenizer.decode(episode.trajectories[0].steps[1].prompt_ids) == second


@shows("rllm.mask_truncated_samples")
def test_answers_that_were_cut_off_can_be_left_out_of_the_gradient(train: Any) -> None:
    assert train("sum", ONE_TOKEN).metrics["batch/rows"] == 4
    run = train("sum", {**ONE_TOKEN, "rllm.mask_truncated_samples": True})
    assert run.metrics["batch/masked_truncated"] == 4
    assert run.steps[0].batch is None


@shows("rllm.filter_token_mismatch")
def test_a_filter_that_does_not_exist_cannot_be_switched_off(train: Any) -> None:
    with expect_error(ConfigError, "unused-key", "`rllm.filter_token_mismatch`"):
        train("sum", {"rllm.filter_token_mismatch": False})


# Filtering and rejecting


def list_kept_reasons(plan: RunPlan) -> set[str]:
    """Ways of ending of the attempts that the filter of a run lets through."""
    steps = [Step([1], [2], [-0.5])]
    episodes = [
        Episode(id=f"t:{index}", trajectories=[Trajectory("agent", steps, 1.0)], termination_reason=reason)
        for index, reason in enumerate(TerminationReason)
    ]
    return {
        episode.termination_reason.value for episode in compact_filter(episodes, masked_reasons(plan.config.rllm))[0]
    }


@shows("rllm.compact_filtering.enable", *MASKS)
@pytest.mark.parametrize("name", MASKS)
def test_each_mask_decides_about_one_way_of_ending(name: str, worlds: Registry) -> None:
    switch = {"rllm.compact_filtering.enable": True}
    before = list_kept_reasons(plan_of(switch, worlds))
    after = list_kept_reasons(plan_of({**switch, name: not MASKS[name]}, worlds))
    assert list_kept_reasons(plan_of({}, worlds)) == {reason.value for reason in TerminationReason}
    assert before ^ after == {name.rpartition(".mask_")[2]}


def test_masked_attempts_do_not_reach_the_batch(train: Any) -> None:
    masks = {"rllm.compact_filtering.enable": True, "rllm.compact_filtering.mask_env_done": True}
    run = train("lucky", {**ONE_TOKEN, **masks})
    ended = run.metrics["batch/ended_env_done"] * len(run.episodes)
    assert ended > 0
    assert run.metrics["batch/masked_env_done"] == ended


@shows("rllm.rejection_sample.enable", "rllm.rejection_sample.multiplier", "rllm.rejection_sample.min_trajs_per_group")
def test_groups_can_be_rejected_and_more_tasks_played_for_that(train: Any) -> None:
    paying = {"rllm.rollout.n": 3, **ONE_TOKEN}
    assert train("paying", paying).metrics["batch/groups_after_filter"] == 2
    on = {**paying, "rllm.rejection_sample.enable": True}
    run = train("paying", on)
    assert run.metrics["batch/groups_dropped_all_solved"] == 2, "all rewards of a group are equal"
    assert run.steps[0].skip_reason == "all_groups_rejected"
    assert len(train("paying", {**on, "rllm.rejection_sample.multiplier": 2}).steps[0].tasks) == 4
    few = train("lucky", {**on, "rllm.rejection_sample.min_trajs_per_group": 4})
    assert few.metrics["batch/groups_dropped_too_few"] == 2


@shows("rllm.rejection_sample.min_partial_solve_tasks")
@pytest.mark.parametrize(("needed", "updates"), [(1, [1, 1]), (3, [0, 1])])
def test_an_update_can_wait_for_partly_solved_tasks(train: Any, needed: int, updates: list[int]) -> None:
    mode = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "episode", "rllm.rollout.n": 8}
    more = {"rllm.rejection_sample.min_partial_solve_tasks": needed, "rllm.trainer.total_batches": 2}
    run = train("lucky", {**mode, **more, **ONE_TOKEN})
    assert [int("actor/loss" in step.metrics) for step in run.steps] == updates


# SDK and episodes on disk


@shows(*(name for name in TABLE if name.startswith("rllm.sdk.")))
@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("rllm.sdk.")])
def test_the_sdk_is_refused_where_no_gateway_plays(train: Any, name: str) -> None:
    value = 4001 if name.endswith("port") else "external"
    with expect_error(ConfigError, "unused-key", f"`{name}`", "workflow agent"):
        train("sum", {name: value})


@shows("rllm.episode_logging.log_episodes", "rllm.episode_logging.episode_log_dir")
def test_episodes_are_kept_on_disk_in_the_run_s_folder_or_another(train: Any, tmp_path: Path) -> None:
    assert not (train("sum").directory / "episodes").exists()
    run = train("sum", {"rllm.episode_logging.log_episodes": True})
    (file,) = (run.directory / "episodes").iterdir()
    assert [json.loads(line)["id"] for line in gzip.decompress(file.read_bytes()).splitlines()] == [
        episode.id for episode in run.episodes
    ]
    name = "logs/${rllm.trainer.project_name}/${rllm.trainer.experiment_name}"
    train("sum", {"rllm.episode_logging.log_episodes": True, "rllm.episode_logging.episode_log_dir": name})
    written = {path.name for path in (tmp_path / "logs/rllm-training/default").iterdir()}
    assert written == {"run.json", "step_000000.jsonl.gz"}
