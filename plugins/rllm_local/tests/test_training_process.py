"""Training in a separate process: as in one process, and what happens when either process ends or fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_error, expect_error
from local_backend import Scenario, run_scenario
from local_models import random_batch
from safetensors.numpy import load_file

from rllm_core.contracts.backend import KlTerm, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError, ConfigError, LossError
from rllm_core.plugins import resolve
from rllm_core.plugins.registry import forget_in_process
from rllm_core.schema.run_config import RunConfig
from rllm_local.backend import LocalBackend
from rllm_local.plugin import check_training_process
from rllm_local.settings import LocalConfig
from rllm_local.training_process import TrainingProcess, WaitPolicy

pytestmark = pytest.mark.usefixtures("forked_children")
NEEDS = frozenset({"values", "ref_logprobs", "sum_pi_squared"})
PROMPT = list(range(6, 26))
LOSSES = """
import os
from rllm_core import register_rllm_loss
from rllm_core.notices import warn_once


@register_rllm_loss("broken")
def broken(inputs, params):
    raise KeyError("nothing there")


@register_rllm_loss("quits")
def quits(inputs, params):
    print("about to quit", flush=True)
    os._exit(7)


@register_rllm_loss("talks")
def talks(inputs, params):
    print("a line of the loss")
    warn_once("the loss warns")
    return -inputs.advantages * inputs.logprobs


@register_rllm_loss("endless")
def endless(inputs, params):
    print("pid", os.getpid(), flush=True)
    while True:
        pass
"""


def _context(*, apart: bool, model: Mapping[str, Any] | None = None, **changes: Any) -> RunContext:
    return RunContext(
        config=RunConfig(),
        backend_config=LocalConfig(
            training={"learning_rate": 1e-2},  # type: ignore[arg-type]
            model=model or {},  # type: ignore[arg-type]
            local={"training_process": apart},  # type: ignore[arg-type]
        ),
        seed=0,
        total_steps=10,
        overlaps=True,
        **changes,
    )


def _pid(backend: LocalBackend) -> int:
    return int(backend._require_started()[0].pid)  # type: ignore[attr-defined]


def _choose_loss(qualified_name: str) -> PluginChoice[Any]:
    registered = resolve("loss", qualified_name)
    return PluginChoice(registered=registered, params=registered.plugin.params())


def _plan(loss: str = "rllm-core/ppo", **changes: Any) -> UpdatePlan:
    values = {"global_step": 0, "aggregation": "token-mean", "entropy_coeff": 0.0, "seed": 0} | changes
    return UpdatePlan(losses={"agent": _choose_loss(loss)}, **values)


@pytest.fixture
def batch() -> TokenBatch:
    made = random_batch([(9, 6), (8, 7), (5, 3)], vocabulary=20)
    return made.with_columns(returns=np.sin(made.tokens).astype(np.float32))


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Losses in a module next to the script, which registers them."""
    directory = tmp_path_factory.mktemp("losses")
    (directory / "losses_of_a_test.py").write_text(LOSSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        __import__("losses_of_a_test")
        yield
    for name in ("broken", "quits", "talks", "endless"):
        forget_in_process("loss", name)


@pytest.fixture(scope="module")
def in_child(losses: None, forked_children: None) -> Iterator[Callable[[Scenario], Any]]:
    """Run scenarios on one shared backend with a training process. No test may end the process."""
    backend = LocalBackend()
    with asyncio.Runner() as runner:
        try:
            engine = runner.run(backend.start(_context(apart=True)))
            yield lambda scenario: runner.run(asyncio.wait_for(scenario(backend, engine), 200))
        finally:
            runner.run(backend.close())


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _plain(result: UpdateResult) -> list[Any]:
    """Return the metrics and the trace, as values that can be compared."""
    assert result.trace is not None
    columns = [np.asarray(getattr(result.trace, field.name)).tolist() for field in fields(result.trace)]
    return [dict(result.metrics), columns, result.optimizer_steps]


async def _steps(backend: LocalBackend, engine: Any, batch: TokenBatch, directory: Path) -> list[tuple[str, Any]]:
    """Return names and values: the results of two full steps, the samples after each, and a checkpoint's tensors."""
    seen: list[tuple[str, Any]] = []
    for number in range(2):
        filled = await backend.process(batch, NEEDS | {"old_logprobs"})
        assert filled.groups is batch.groups
        seen += [(name, getattr(filled, name).tolist()) for name in sorted(NEEDS | {"old_logprobs"})]
        plan = _plan(global_step=number, seed=number, kl=KlTerm(beta=0.1, estimator="k3"), trace=True)
        seen.append(("update", _plain(await backend.update(filled, plan))))
        await backend.sync_weights(number + 1)
        completion = await engine.generate(PROMPT, SamplingParams(max_tokens=20, seed=5), session=f"{number}")
        sampled = completion.token_ids.tolist(), completion.logprobs.tolist(), completion.weight_version
        seen.append(("sampled", sampled))
    directory.mkdir()
    await backend.save(directory)
    for file in sorted(directory.rglob("*.safetensors")):
        seen += [(name, tensor.tolist()) for name, tensor in sorted(load_file(file).items())]
    return seen


@pytest.mark.parametrize(
    ("model", "versions"),
    [
        ({"dtype": "bfloat16"}, 2),
        pytest.param({"lora_rank": 4}, 1, marks=pytest.mark.long),
    ],
    ids=["bfloat16, fixed", "lora, latest"],
)
def test_training_process_gives_results_of_one_process(
    model: dict[str, Any], versions: int, batch: TokenBatch, tmp_path: Path
) -> None:
    here, apart = (
        run_scenario(
            _context(apart=apart, model=model, needs=NEEDS, versions_served=versions),
            lambda backend, engine, directory=tmp_path / str(apart): _steps(backend, engine, batch, directory),
        )
        for apart in (False, True)
    )
    assert [name for (name, value), (_, other) in zip(apart, here, strict=True) if value != other] == []


@pytest.mark.usefixtures("losses")
def test_sampling_continues_during_updates_and_close_ends_process(
    batch: TokenBatch,
) -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> tuple[int, Completion]:
        update = asyncio.create_task(backend.update(batch, _plan("in-process/endless")))
        done: Completion = await engine.generate(PROMPT, SamplingParams(max_tokens=20, seed=5), session="s")
        assert not update.done()
        update.cancel()
        return _pid(backend), done

    pid, done = run_scenario(_context(apart=True), scenario)
    assert (len(done.token_ids), done.weight_version) == (20, 0)
    assert not _alive(pid)


def test_synchronous_runs_have_one_process(
    in_child: Callable[[Scenario], Any],
) -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> bool:
        return hasattr(backend._require_started()[0], "pid")

    assert not run_scenario(replace(_context(apart=True), overlaps=False), scenario)
    assert in_child(scenario)


def test_loss_of_main_program_is_rejected_with_hint(batch: TokenBatch, in_child: Callable[[Scenario], Any]) -> None:
    plan = _plan()
    ppo = plan.losses["agent"]
    unknown = replace(ppo, registered=replace(ppo.registered, distribution="in-process"))

    async def scenario(backend: LocalBackend, engine: Any) -> None:
        await backend.update(batch, replace(plan, losses={"agent": unknown}))

    values = ("in-process/ppo", "local.training_process=false")
    with expect_error(LossError, "plugin-of-other-program", *values) as raised:
        in_child(scenario)
    assert "install" not in str(raised.value)


def test_an_error_arrives_with_its_traceback(batch: TokenBatch, in_child: Callable[[Scenario], Any]) -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> LossError:
        with pytest.raises(LossError, match=r"loss 'broken' for role 'agent' failed: KeyError") as raised:
            await backend.update(batch, _plan("in-process/broken"))
        await backend.update(batch, _plan())
        return raised.value

    error = in_child(scenario)
    assert "--debug" in error.hint
    assert 'losses_of_a_test.py", line' in error.__notes__[0]


@pytest.mark.usefixtures("losses")
def test_a_death_within_an_update_is_named(batch: TokenBatch) -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> BackendError:
        async def sample_without_end() -> None:
            while True:
                await engine.generate(PROMPT, SamplingParams(max_tokens=400), session="s")

        call = asyncio.create_task(sample_without_end())
        with expect_error(BackendError, "process-died", "exit code 7", "'update'") as raised:
            await backend.update(batch, _plan("in-process/quits"))
        for waiting in (call, engine.generate(PROMPT, SamplingParams(max_tokens=1), session="t"), backend.save(Path())):
            with expect_error(BackendError, "process-died", "exit code 7", "'update'"):
                await waiting
        return raised.value

    error = run_scenario(_context(apart=True), scenario)
    assert "--resume" in error.hint
    assert "memory" not in error.hint
    assert error.details.endswith("about to quit")


def test_process_death_between_updates_fails_sampling_at_once() -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> None:
        os.kill(_pid(backend), signal.SIGKILL)
        for number in range(1000):
            await engine.generate(PROMPT, SamplingParams(max_tokens=400), session=f"{number}")

    with expect_error(BackendError, "process-died", "SIGKILL", "memory"):
        run_scenario(_context(apart=True, versions_served=2), scenario)


def test_training_process_stopped_is_named_and_ended(batch: TokenBatch) -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> tuple[int, BackendError]:
        process = backend._require_started()[0]
        assert isinstance(process, TrainingProcess)
        process._wait_policy = WaitPolicy(first=0.2)
        os.kill(process.pid, signal.SIGSTOP)
        while not process._process.is_stopped:
            pass
        with pytest.raises(BackendError) as raised:
            await backend.update(batch, _plan())
        with pytest.raises(BackendError, match="was killed"):
            await backend.save(Path())
        with pytest.raises(BackendError, match="was killed"):
            await engine.generate(PROMPT, SamplingParams(max_tokens=1), session="s")
        assert not _alive(process.pid)
        return process.pid, raised.value

    pid, error = run_scenario(_context(apart=True), scenario)
    check_error(error, "process-timeout", f"pid {pid}", "'update'", "0.2 s", "SIGSTOP", "--resume")


def test_wait_policy_grows_with_the_slowest_answer() -> None:
    policy = WaitPolicy(first=100.0, least=1e-9)

    async def answer() -> int:
        await asyncio.sleep(0)
        return 3

    assert policy.limit("update") == 100.0
    assert asyncio.run(policy.wait_for("update", answer())) == 3
    assert policy.limit("update") == 20 * policy._slowest["update"]
    assert policy.limit("save") == 100.0
    assert replace(policy, least=50.0).limit("update") == 50.0


def test_output_of_process_is_printed_by_run(
    batch: TokenBatch, in_child: Callable[[Scenario], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> None:
        await backend.update(batch, _plan("in-process/talks"))
        assert capsys.readouterr().err.splitlines() == ["a line of the loss", "warning: the loss warns"]

    in_child(scenario)


def test_training_process_key_is_rejected_in_synchronous_runs() -> None:
    settings = LocalConfig(local={"training_process": False})  # type: ignore[arg-type]
    with expect_error(ConfigError, "unused-key", "`local.training_process` is false"):
        check_training_process(RunConfig(), settings)
    asynchronous = RunConfig(rllm={"async_training": {"enable": True, "staleness_threshold": 1}})  # type: ignore[arg-type]
    check_training_process(asynchronous, settings)
    check_training_process(RunConfig(), LocalConfig())


def test_unloadable_model_raises_config_error_and_process_ends() -> None:
    with expect_error(ConfigError, "model-not-loadable", "./nowhere"):
        run_scenario(_context(apart=True, model={"name": "./nowhere"}), lambda *_: asyncio.sleep(0))
