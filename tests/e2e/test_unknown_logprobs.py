"""Workflows without log-probs train like those with them, because the trainer computes missing log-probs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from tinker_in_process import running_server

from rllm.api.trainer import UnifiedTrainer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, Step, Trajectory
from rllm_core.errors import RolloutError
from rllm_core.rollout.conversation import Conversation
from rllm_tinker_server.serve import ModelOptions, open_service

from .conftest import Steps

ROWS = [{"say": word} for word in ("one", "two", "three", "four")]


class Echo(Workflow):
    """One turn. The reward is the number of even tokens. `known` specifies the stored parts of the call."""

    def __init__(self, context: Any, known: str) -> None:
        super().__init__(context)
        self._known = known

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        trajectory = Trajectory("agent")
        conversation = Conversation(self.context, trajectory, uid)
        conversation.add_observation(task["say"])
        said = await conversation.generate()
        await conversation.close()
        reward = float(np.mean(said.response_ids % 2 == 0))
        if self._known == "tokens":
            said = Step(said.prompt_ids, said.response_ids)
        elif self._known == "text":
            renderer = self.rollout_engine.renderer
            asked = renderer.prompt([{"role": "user", "content": task["say"]}])
            said = Step(asked, renderer.response_ids(said.text), text=said.text)
        return Episode(id=uid, trajectories=[Trajectory("agent", [said], reward)])


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def tinker_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server in this process, shared by all runs."""
    options = ModelOptions(model="tiny", checkpoints=tmp_path_factory.mktemp("checkpoints"))
    with open_service(options) as service, running_server(service) as running:
        yield running.url


def trained(known: str, backend: str, algorithm: dict[str, Any] | None = None, **arguments: Any) -> list[TrainStep]:
    kept = Steps()
    trainer = UnifiedTrainer(
        config={
            "rllm": {
                "backend": backend,
                "rollout": {"n": 4},
                "trainer": {"total_batches": 2, "val_before_train": False, "test_freq": -1},
                "algorithm": {"loss_fn": "ppo", **(algorithm or {})},
            },
            "data": {"train_batch_size": 4, "max_response_length": 6},
        },
        **arguments,
        workflow_class=Echo,
        workflow_args={"known": known},
        train_dataset=ROWS,
        observers=[kept],
        overwrite=True,
    )
    try:
        trainer.fit()
    finally:
        trainer.shutdown()
    return kept.steps


COMPARED = ("actor/loss", "actor/grad_norm", "actor/ratio_mean", "actor/entropy")


@pytest.mark.parametrize(
    "backend", [pytest.param("local", marks=pytest.mark.smoke), pytest.param("tinker", marks=pytest.mark.long)]
)
def test_tokens_without_log_probs_train_equally(
    backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {}
    if backend == "tinker":
        monkeypatch.setenv("TINKER_API_KEY", "tml-test")
        url = request.getfixturevalue("tinker_server")
        arguments["backend_args"] = {"tinker_base_url": url, "model": {"name": "tiny"}}
    told, untold = trained("log-probs", backend, **arguments), trained("tokens", backend, **arguments)
    for one, other in zip(told, untold, strict=True):
        assert one.filled_batch.tokens.tolist() == other.filled_batch.tokens.tolist()
        assert other.filled_batch.unknown_logprobs.sum() == other.filled_batch.loss_mask.sum()
        for name in COMPARED:
            if name in one.metrics:
                assert other.metrics[name] == pytest.approx(one.metrics[name], rel=1e-3, abs=1e-5), name
        assert "actor/rollout_logprob_difference" not in other.metrics


def test_a_workflow_that_has_only_text_trains() -> None:
    for step in trained("text", "local"):
        assert step.metrics["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        assert step.metrics["actor/grad_norm"] > 0.1


def test_rollout_correction_says_what_it_lacks() -> None:
    correction = {"rollout_correction": {"tis_mode": "token"}}
    with expect_error(RolloutError, "missing-logprobs", "tis_mode=token"):
        trained("tokens", "local", correction)
