"""The backend as the trainer drives it: start, sample, process, update, sync_weights, save, load, close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from expecting import expect_error
from local_backend import run_scenario
from local_models import make_plan

from rllm.cli.main import main
from rllm_core.contracts.backend import KlTerm, RolloutCorrection, RunContext, UpdatePlan
from rllm_core.contracts.engine import SamplingParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.errors import CheckpointError, ConfigError, RolloutError
from rllm_core.schema.run_config import RllmSection, RunConfig
from rllm_local import tiny
from rllm_local.backend import LocalBackend
from rllm_local.early_renderer import cached_renderer
from rllm_local.engine import LocalEngine
from rllm_local.plugin import rllm_backends
from rllm_local.settings import LocalConfig

GUESSES = ["lower", "higher"]


def _context(temperature: float = 1.0, seed: int = 0, **sections: Any) -> RunContext:
    return RunContext(
        config=RunConfig(sampling={"train": {"temperature": temperature}}),  # type: ignore[arg-type]
        backend_config=LocalConfig(**({"training": {"learning_rate": 1e-2}} | sections)),
        seed=seed,
        total_steps=10,
    )


async def _play_games(engine: LocalEngine, *, temperature: float, label: str, turns: int = 3) -> TokenBatch:
    """Several conversations of several turns at once, as workflows make them."""

    async def game(index: int) -> Trajectory:
        trajectory = Trajectory("agent", reward=float(index % 2))
        prompt = engine.renderer.prompt([{"role": "user", "content": f"guess {index}"}])
        for turn in range(turns):
            params = SamplingParams(max_tokens=3 + index % 3, temperature=temperature, seed=100 * index + turn)
            completion = await engine.generate(prompt, params, session=f"{label}{index}")
            trajectory.add_step(
                prompt, completion.token_ids, completion.logprobs, weight_version=completion.weight_version
            )
            guess = [{"role": "user", "content": GUESSES[turn % 2]}]
            continuation = engine.renderer.continuation(int(completion.token_ids[-1]), guess)
            prompt = np.concatenate((trajectory.tokens.ids, continuation))
        await engine.end_session(f"{label}{index}")
        return trajectory

    trajectories = await asyncio.gather(*(game(index) for index in range(12)))
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=list(trajectories))])
    advantages = np.repeat(np.where(np.arange(batch.n_rows) % 2, 1.0, -1.0), batch.row_lengths) * batch.loss_mask
    return batch.with_columns(advantages=advantages.astype(np.float32))


LORA = {"lora_rank": 4}


@pytest.mark.parametrize(("temperature", "model"), [(0.6, {}), (0.0, {}), (1.0, LORA)])
def test_training_recomputes_sampled_log_probs_at_every_step(temperature: float, model: dict[str, Any]) -> None:
    async def scenario(backend: LocalBackend, engine: LocalEngine) -> list[Mapping[str, float]]:
        metrics = []
        for step in range(3):
            batch = await _play_games(engine, temperature=temperature, label=f"{step}/")
            assert batch.weight_version.tolist() == [step] * 12
            batch = await backend.process(batch, frozenset({"old_logprobs"}))
            result = await backend.update(batch, make_plan(global_step=step, seed=step))
            metrics.append(result.metrics)
            await backend.sync_weights(step + 1)
        return metrics

    for metrics in run_scenario(_context(temperature, model=model), scenario):
        assert metrics["actor/rollout_logprob_difference"] < 1e-5
        assert metrics["actor/grad_norm"] > 0


def test_new_run_starts_with_exact_weights_of_checkpoint(tmp_path: Path) -> None:
    async def train_and_save(backend: LocalBackend, engine: LocalEngine) -> list[torch.Tensor]:
        batch = await backend.process(await _play_games(engine, temperature=1.0, label=""), frozenset())
        await backend.update(batch, make_plan())
        await backend.save(tmp_path)
        return await weights(backend, engine)

    async def weights(backend: LocalBackend, engine: LocalEngine) -> list[torch.Tensor]:
        return [master.detach().clone() for master in backend._require_started()[0].trainer.masters]

    expected = run_scenario(_context(model={"dtype": "bfloat16"}), train_and_save)
    assert not torch.equal(expected[0], expected[0].bfloat16().float())
    found = run_scenario(_context(model={"name": str(tmp_path / "model"), "dtype": "bfloat16"}), weights)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("command", [["train", "guess", "--dry-run"], ["eval", "guess"]])
def test_float16_is_refused_before_anything_is_loaded(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "model.dtype=float16"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert '`model.dtype` is "float16" (from command line): float16 is not supported' in said
    assert "use bfloat16 or float32" in said


def _critical(**changes: Any) -> RunContext:
    """Of a run with a critic, a reference model, and old log-probs of the trainer's own."""
    context = _context(**changes)
    correction = {"bypass_mode": False, "tis_mode": "token"}
    algorithm = {"kl_beta": 0.1, "rollout_correction": correction}
    rllm = RllmSection(algorithm=algorithm)  # type: ignore[arg-type]
    config = RunConfig(sampling=context.config.sampling, rllm=rllm)
    return replace(context, config=config, needs=NEEDS)


NEEDS = frozenset({"values", "ref_logprobs", "sum_pi_squared"})
TERMS = {
    "kl": KlTerm(beta=0.1, estimator="k3"),
    "rollout_correction": RolloutCorrection(mode="token", cap=2.0, floor=0.0, beyond_cap="truncate"),
}


async def _critical_step(
    backend: LocalBackend, engine: LocalEngine, number: int, make_plan: Callable[..., UpdatePlan]
) -> tuple[TokenBatch, Mapping[str, float]]:
    batch = await _play_games(engine, temperature=0.7, label=f"{number}/")
    batch = await backend.process(batch, NEEDS | {"old_logprobs"})
    batch = batch.with_columns(returns=np.sin(batch.tokens).astype(np.float32))
    result = await backend.update(batch, make_plan(global_step=number, seed=number, **TERMS))
    await backend.sync_weights(number + 1)
    return batch, result.metrics


def test_needed_columns_are_filled_and_reference_stays_fixed() -> None:
    async def scenario(backend: LocalBackend, engine: LocalEngine) -> list[tuple[TokenBatch, dict[str, float]]]:
        return [await _critical_step(backend, engine, number, make_plan) for number in range(3)]

    steps = run_scenario(_critical(temperature=0.7), scenario)
    for batch, metrics in steps:
        assert batch.old_logprobs is not batch.sampling_logprobs
        np.testing.assert_allclose(batch.old_logprobs, batch.sampling_logprobs, atol=1e-5)
        assert metrics["actor/rollout_weight"] == pytest.approx(1, abs=1e-4)
        assert 0 < batch.sum_pi_squared[batch.loss_mask].min() < batch.sum_pi_squared.max() <= 1
    (first, before), *_, (last, after) = steps
    np.testing.assert_allclose(first.ref_logprobs, first.old_logprobs, rtol=1e-6)
    assert not first.values.any()
    assert np.abs(last.ref_logprobs - last.old_logprobs)[last.loss_mask].mean() > 0.01
    assert last.values.any()
    assert before["actor/kl_ref"] == pytest.approx(0, abs=1e-6)
    assert after["actor/kl_ref"] > 1e-4


@pytest.mark.parametrize("model", [{}, {"dtype": "bfloat16", **LORA}])
def test_a_run_with_critic_and_reference_continues_exactly(model: dict[str, Any], tmp_path: Path) -> None:
    async def step(backend: LocalBackend, engine: LocalEngine, number: int) -> tuple[list[float], dict[str, float]]:
        batch, metrics = await _critical_step(backend, engine, number, make_plan)
        return [*batch.tokens.tolist(), *batch.values.tolist(), *batch.ref_logprobs.tolist()], metrics

    async def straight(backend: LocalBackend, engine: LocalEngine) -> list[Any]:
        steps = [await step(backend, engine, number) for number in range(2)]
        await backend.save(tmp_path)
        return steps + [await step(backend, engine, number) for number in range(2, 4)]

    async def resume_run(backend: LocalBackend, engine: LocalEngine) -> list[Any]:
        await backend.load(tmp_path)
        await backend.sync_weights(2)
        return [await step(backend, engine, number) for number in range(2, 4)]

    expected = run_scenario(_critical(model=model), straight)
    assert run_scenario(_critical(model=model), resume_run) == expected[2:]
    with expect_error(CheckpointError, "reference-changed", "model.name", tmp_path):
        run_scenario(_critical(seed=5, model=model), resume_run)


def test_row_above_the_context_is_rejected_everywhere() -> None:
    def batch(tokens: int) -> TokenBatch:
        trajectory = Trajectory("agent")
        trajectory.add_step([6] * (tokens - 1), [7], None)
        return build_batch([TrajectoryGroup(group_id="t:agent", trajectories=[trajectory])])

    async def scenario(backend: LocalBackend, engine: LocalEngine) -> None:
        await backend.process(batch(engine.max_context), frozenset({"old_logprobs"}))
        too_long = batch(engine.max_context + 1)
        with expect_error(ConfigError, "context-too-long", "33 tokens", "StageContext.max_context"):
            await backend.process(too_long, frozenset({"old_logprobs"}))
        with expect_error(ConfigError, "context-too-long"):
            await backend.update(too_long, make_plan())

    run_scenario(_context(training={"max_length": 32}), scenario)


def test_early_renderer_is_the_renderer_of_the_run(tmp_path: Path) -> None:
    tokenizer = tiny.build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    model = tiny.build_model(len(tokenizer), 0)
    model.generation_config.eos_token_id = [2, 7]
    model.save_pretrained(tmp_path)
    for training, longest in ({}, 512), ({"max_length": 99}, 99):
        context = _context(model={"name": str(tmp_path)}, training=training)
        found = cached_renderer(context)
        assert found is not None

        async def scenario(backend: LocalBackend, engine: LocalEngine) -> tuple[Any, int]:
            return engine.renderer, engine.max_context

        for renderer, max_context in (found, run_scenario(context, scenario)):
            assert (max_context, renderer.stop_ids) == (longest, {2, 7})
            assert renderer.prompt([{"role": "user", "content": "guess"}]).tolist() == tokenizer.encode("guess")


def test_event_loop_stays_free_while_model_computes() -> None:
    async def scenario(backend: LocalBackend, engine: LocalEngine) -> set[str]:
        threads: set[str] = set()
        forward = backend._require_started()[0].trainer.masters.model.forward

        def noting(*arguments: Any, **options: Any) -> Any:
            threads.add(threading.current_thread().name)
            return forward(*arguments, **options)

        backend._require_started()[0].trainer.masters.model.forward = noting
        batch = await backend.process(await _play_games(engine, temperature=1.0, label=""), frozenset())
        await backend.update(batch, make_plan())
        return threads

    (thread,) = run_scenario(_context(), scenario)
    assert thread.startswith("rllm-local")


def test_torch_uses_the_threads_of_the_settings() -> None:
    async def scenario(backend: LocalBackend, engine: LocalEngine) -> int:
        return await backend._in_worker(torch.get_num_threads)

    assert run_scenario(_context(local={"torch_threads": 2}), scenario) == 2
    assert run_scenario(_context(), scenario) == 1


def test_unloadable_model_raises_config_error_and_backend_closes() -> None:
    with expect_error(ConfigError, "model-not-loadable", "./nowhere"):
        run_scenario(_context(model={"name": "./nowhere"}), lambda *_: asyncio.sleep(0))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rllm-local")]


def test_the_backend_closes_though_what_samples_fails_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise RuntimeError("it does not close")

    async def scenario(backend: LocalBackend, engine: LocalEngine) -> None:
        monkeypatch.setattr(backend._sampling, "close", fails)

    with pytest.raises(RuntimeError, match="does not close"):
        run_scenario(_context(), scenario)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rllm-local")]


WITHOUT_THINKING = RunConfig(rllm=RllmSection(disable_thinking=True))


@pytest.mark.parametrize(("config", "opening"), [(RunConfig(), "go"), (WITHOUT_THINKING, "go=")])
def test_thinking_is_switched_off_through_the_chat_template(
    config: RunConfig, opening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = "{%- if enable_thinking is defined and not enable_thinking -%}={%- endif -%}"
    monkeypatch.setattr(tiny, "CHAT_TEMPLATE", tiny.CHAT_TEMPLATE + switch)

    async def scenario(backend: LocalBackend, engine: LocalEngine) -> str:
        return engine.renderer.text(engine.renderer.prompt([{"role": "user", "content": "go"}]))

    assert run_scenario(replace(_context(), config=config), scenario) == opening


def test_sampling_after_the_end_is_a_rollout_error() -> None:
    async def scenario(backend: LocalBackend, engine: LocalEngine) -> LocalEngine:
        return engine

    engine = run_scenario(_context(), scenario)
    with pytest.raises(RolloutError, match="sampling engine stopped"):
        asyncio.run(engine.generate([7], SamplingParams(max_tokens=1), session="late"))


def test_the_plugins_yaml_contains_every_default() -> None:
    (record,) = rllm_backends()
    values = yaml.safe_load(record.config_yaml().read_text())
    assert values.pop("rllm") == {"backend": "local"}
    assert values == LocalConfig().model_dump()
    assert record.load() is LocalBackend
    assert record.params is LocalConfig


def test_template_without_tools_fails_before_weights_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*arguments: Any) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr("rllm_local.trainer.load_model_to_train", load)
    with expect_error(ConfigError, "tools-not-supported", "tools"):
        run_scenario(replace(_context(), calls_tools=True), lambda backend, engine: None)  # type: ignore[arg-type, return-value]
