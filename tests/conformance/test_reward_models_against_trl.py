"""Reward models: tokens, losses, gradients and weights are those of TRL's trainer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import peers
import pytest
import torch
from close import assert_close
from local_models import gradient_of, make_plan, make_updater, weights_of
from transformers import AutoModelForSequenceClassification

from rllm.builtin.preferences.comparison import Comparison, RewardModelParams, compare
from rllm.builtin.preferences.stages import preference_groups
from rllm.rows.row_limit import RowFitter, RowLimit
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Task
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import tiny
from rllm_local.columns import ColumnFiller
from rllm_local.model import load_model
from rllm_local.settings import ModelSection
from rllm_local.update import Updater

TRL_LOSS = peers.trl_reward_loss()
LINE_BREAK = (
    "{%- for message in messages -%}{{ message.content }}<end>{{ '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}={%- endif -%}"
)
"""A template with tokens after the end of a response, and with a start of the next one."""


def pair(number: int) -> dict[str, Any]:
    said = {"chosen": f"{number + 1}", "rejected": f"{number}, or higher" if number else "1"}
    return {
        "prompt": [{"role": "user", "content": f"{number} plus 1 is"}],
        **{name: [{"role": "assistant", "content": text}] for name, text in said.items()},
    }


PAIRS = [pair(number) for number in range(6)]
MARGINS = [{**row, "margin": number / 4} for number, row in enumerate(PAIRS)]


@pytest.fixture(params=["tiny", "line break"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    tokenizer = tiny.build_tokenizer()
    if request.param == "line break":
        tokenizer.chat_template = LINE_BREAK
    return tokenizer


@pytest.fixture
def model() -> Any:
    return load_model(ModelSection(name="tiny", device="cpu"), 0, classifier=True).model


@pytest.fixture
def other(model: Any, tmp_path: Path) -> Any:
    """The same model, loaded by transformers."""
    model.save_pretrained(tmp_path)
    return AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()


def batch_of(rows: Sequence[Mapping[str, Any]], tokenizer: Any, params: RewardModelParams) -> TokenBatch:
    renderer = TemplateRenderer(tokenizer, [tokenizer.eos_token_id])
    tasks = [Task(id=str(number), data=dict(row)) for number, row in enumerate(rows)]
    fitter = RowFitter(RowLimit(10_000, is_context=True))
    return build_batch(preference_groups(tasks, renderer, params, fitter)[1])


def ours(updater: Updater, model: Any, batch: TokenBatch, params: RewardModelParams, tokens: int) -> Comparison:
    """Compare, then make the update of backend `local`."""
    filler = ColumnFiller(model, temperature=1.0, max_tokens_per_microbatch=tokens, recompute_old_logprobs=False)

    async def process(batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        return batch.with_columns(**filler.columns(batch, needs))

    backend: Any = SimpleNamespace(process=process)
    found = asyncio.run(compare(backend, batch, params))
    plan = make_plan("reinforce", batch.roles, aggregation="token-sum")
    updater.update(found.batch.with_columns(advantages=found.advantages()), plan)
    return found


def inputs_of(rows: Sequence[Mapping[str, Any]], tokenizer: Any) -> dict[str, torch.Tensor]:
    """Tokens as TRL makes them, chosen completions first, padded on the right."""
    made = [
        tokenizer.apply_chat_template([*row["prompt"], *row[name]], return_dict=False)
        for name in ("chosen", "rejected")
        for row in rows
    ]
    padded = tokenizer.pad({"input_ids": made}, padding_side="right", return_tensors="pt")
    inputs = {name: padded[name] for name in ("input_ids", "attention_mask")}
    return inputs | ({"margin": torch.tensor([row["margin"] for row in rows])} if "margin" in rows[0] else {})


def trainer_of(model: Any, center: float | None) -> SimpleNamespace:
    def same(value: Any) -> Any:
        return value

    accelerator = SimpleNamespace(gather=same, gather_for_metrics=same)
    return SimpleNamespace(
        model=model,
        args=SimpleNamespace(center_rewards_coefficient=center),
        accelerator=accelerator,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )


class WithMargin:
    """A model as TRL calls it. TRL's loss passes on a margin, and transformers ignores it in keyword arguments."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.training = False

    def __call__(self, margin: Any = None, **inputs: Any) -> Any:
        return self._model(**inputs)


@pytest.mark.parametrize("micro_batch_tokens", [40, 2048])
@pytest.mark.parametrize("center", [None, 0.3])
@pytest.mark.parametrize("rows", [PAIRS, MARGINS], ids=["pairs", "margins"])
def test_losses_and_gradients_are_trls(
    rows: Any, center: float | None, micro_batch_tokens: int, tokenizer: Any, model: Any, other: Any
) -> None:
    params = RewardModelParams(center_rewards_coefficient=center)
    updater = make_updater(model, learning_rate=1e-12, max_tokens_per_microbatch=micro_batch_tokens)
    found = ours(updater, model, batch_of(rows, tokenizer, params), params, micro_batch_tokens)
    trainer = trainer_of(WithMargin(other), center)
    expected = TRL_LOSS(trainer, trainer.model, inputs_of(rows, tokenizer))
    expected.backward()

    assert found.metrics["loss"] == pytest.approx(expected.item(), rel=1e-6)
    expected_gradient, terms = gradient_of(other), []
    for row in rows:
        other.zero_grad()
        (TRL_LOSS(trainer_of(trainer.model, center), trainer.model, inputs_of([row], tokenizer)) / len(rows)).backward()
        terms.append(gradient_of(other))
    assert_close(gradient_of(model), expected_gradient, terms, relative=1e-6)
    reported = trainer._metrics["eval"]
    for name in ("accuracy", "margin", "mean_reward"):
        assert found.metrics[name] == pytest.approx(reported[name][0], abs=1e-6)


def test_weights_equal_a_plain_loop(model: Any, other: Any) -> None:
    """Ten steps of the update of `local`, and of TRL's loss with torch's AdamW."""
    tokenizer = tiny.build_tokenizer()
    params = RewardModelParams(center_rewards_coefficient=0.01)
    settings = {"learning_rate": 1e-4, "weight_decay": 0.1, "max_grad_norm": 1.0}
    updater = make_updater(model, **settings)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    batch, inputs = batch_of(MARGINS, tokenizer, params), inputs_of(MARGINS, tokenizer)
    trainer = trainer_of(WithMargin(other), 0.01)
    losses = []
    for _ in range(10):
        losses.append(ours(updater, model, batch, params, 2048).metrics["loss"])
        optimizer.zero_grad()
        TRL_LOSS(trainer, trainer.model, inputs).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()

    assert losses[-1] < losses[0]
    torch.testing.assert_close(weights_of(model), weights_of(other), rtol=0, atol=1e-6)


def test_rows_have_the_tokens_of_scoring(tokenizer: Any) -> None:
    params = RewardModelParams()
    batch = batch_of(PAIRS, tokenizer, params)
    rows = [row[:-1].tolist() for row in np.split(batch.tokens, batch.row_offsets[1:-1])]
    expected = [
        tokenizer.apply_chat_template([*row["prompt"], *row[name]], return_dict=False)
        for row in PAIRS
        for name in ("chosen", "rejected")
    ]

    assert rows == expected
