"""Rows become datums token by token: nothing is tokenized again, and a conversation is sent once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_tinker.datums import Rows, columns_of, native_loss


def _batch(*turns: tuple[list[int], list[int]]) -> TokenBatch:
    trajectory = Trajectory("agent", reward=1.0)
    for prompt, response in turns:
        trajectory.add_step(prompt, response, [-0.5 * token for token in response], weight_version=0)
    batch = build_batch([TrajectoryGroup(group_id="task:agent", trajectories=[trajectory])])
    return batch.with_columns(old_logprobs=batch.sampling_logprobs, advantages=batch.loss_mask.astype(np.float32))


def _rows(batch: TokenBatch) -> Rows:
    return Rows.from_batch(batch, np.arange(batch.n_rows))


def test_the_turns_of_a_conversation_are_one_datum() -> None:
    batch = _batch(([5, 6], [7, 8]), ([5, 6, 7, 8, 9], [10]))
    (datum,) = _rows(batch).datums(logprobs=batch.sampling_logprobs)
    assert datum.tokens.tolist() == [5, 6, 7, 8, 9]
    assert datum.targets.tolist() == [6, 7, 8, 9, 10]
    assert datum.inputs["logprobs"].tolist() == [0, -3.5, -4.0, 0, -5.0]


def test_a_rewritten_history_starts_another_datum() -> None:
    batch = _batch(([5, 6], [7]), ([5, 9], [10]))
    assert [datum.targets.tolist() for datum in _rows(batch).datums()] == [[6, 7], [9, 10]]


def test_tokens_after_last_sampled_token_are_not_sent() -> None:
    batch = _batch(([5, 6], [7]), ([5, 6, 7, 8, 9], []))
    (datum,) = _rows(batch).datums()
    assert datum.tokens.tolist() == [5, 6]


def test_what_comes_back_lies_where_it_belongs() -> None:
    batch = _batch(([5, 6], [7]), ([5, 9], [10]))
    column = _rows(batch).column([np.array([0.1, 0.2], np.float32), np.array([0.3, 0.4], np.float32)])
    np.testing.assert_allclose(column, [0, 0.1, 0.2, 0, 0.3, 0.4])


def test_sampled_tokens_are_listed_row_after_row() -> None:
    batch = _batch(([5, 6], [7, 8]), ([5, 6, 7, 8, 9], [10]))
    assert _rows(batch).sampled_indices.tolist() == np.flatnonzero(batch.loss_mask).tolist()


def _choose_loss(qualified_name: str) -> PluginChoice[LossPlugin[Any]]:
    distribution, _, name = qualified_name.partition("/")
    plugin: LossPlugin[Any] = LossPlugin(name=name, summary="", load=lambda: None)
    return PluginChoice(registered=Registered(plugin=plugin, distribution=distribution, version="0"), params=NoParams())


def test_weights_go_into_the_advantages() -> None:
    batch = _batch(([5, 6], [7]))
    loss = native_loss(_choose_loss("rllm-core/importance_sampling"))
    assert loss is not None
    assert batch.advantages is not None
    weights = batch.loss_mask.astype(np.float32) * 0.25
    columns = columns_of(loss, batch.advantages, batch.sampling_logprobs, batch.loss_mask, weights)
    assert columns["advantages"].tolist() == [0, 0, 0.25]
    assert columns["logprobs"].tolist() == [0, 0, -3.5]


@pytest.mark.parametrize("name", ["somebody/ppo", "in-process/ppo", "rllm-estimators/sapo"])
def test_losses_of_other_packages_have_no_service_equivalent(name: str) -> None:
    assert native_loss(_choose_loss(name)) is None
