"""Preferences: losses and gradients of DPO, IPO and KTO are TRL's."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import peers
import pytest
import torch
from close import assert_close
from local_models import gradient_of, make_plan, make_updater
from numpy.typing import NDArray

from rllm.builtin.preferences.comparison import Comparison, PreferParams, compare
from rllm.builtin.preferences.stages import preference_groups
from rllm.builtin.supervised.turns import ExamplesParams
from rllm.rows.row_limit import RowFitter, RowLimit
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Task
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import tiny
from rllm_local.columns import ColumnFiller
from rllm_local.reference import Reference

TRL = peers.trl_preferences()
BETA = 0.4
WEIGHTS = {"desirable_weight": 1.5, "undesirable_weight": 0.75}
PAIRS = [{"prompt": f"{n} plus 1 is", "chosen": f" {n + 1}", "rejected": f" {n}, or higher"} for n in range(5)]
LABELS = [{"prompt": f"{n} plus 1 is", "completion": f" {n + 1}" + n * ", or lower", "label": n < 3} for n in range(5)]


def model_of(seed: int) -> Any:
    return tiny.build_model(len(tiny.build_tokenizer()), seed)


def batch_of(rows: Sequence[dict[str, Any]]) -> TokenBatch:
    tokenizer = tiny.build_tokenizer()
    renderer = TemplateRenderer(tokenizer, [tokenizer.eos_token_id])
    tasks = [Task(id=str(number), data=row) for number, row in enumerate(rows)]
    fitter = RowFitter(RowLimit(10_000, is_context=True))
    return build_batch(preference_groups(tasks, renderer, ExamplesParams(), fitter)[1])


def ours(model: Any, batch: TokenBatch, params: PreferParams, micro_batch_tokens: int) -> Comparison:
    """Compare with another model as reference, then make the update of backend `local`."""
    filler = ColumnFiller(
        model,
        temperature=1.0,
        max_tokens_per_microbatch=micro_batch_tokens,
        recompute_old_logprobs=False,
        reference=Reference(model_of(1)),
    )

    async def process(batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        return batch.with_columns(**filler.columns(batch, needs))

    backend: Any = SimpleNamespace(process=process)
    found = asyncio.run(compare(backend, batch, params))
    plan = make_plan("reinforce", batch.roles, aggregation="token-sum")
    updater = make_updater(model, learning_rate=1e-12, max_tokens_per_microbatch=micro_batch_tokens)
    updater.update(found.batch.with_columns(advantages=found.advantages()), plan)
    return found


class Fused:
    """A model as TRL calls it: with the outputs of its fused head, computed plainly. Sums are in float64, as ours."""

    training = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self.logprobs: list[torch.Tensor] = []
        """Of the tokens that were summed, in all calls."""

    def __call__(self, labels: torch.Tensor, fused_lm_head: bool, **inputs: Any) -> Any:
        logprobs = torch.log_softmax(self._model(**inputs).logits[:, :-1].double(), -1)
        mask = labels[:, 1:] != -100
        of_labels = logprobs.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
        self.logprobs.append(of_labels[mask].detach())
        unused = mask.float()
        return SimpleNamespace(
            log_probs=torch.where(mask, of_labels, 0.0), entropy=unused, mean_logits=unused, is_top1=mask
        )


def padded(rows: Sequence[tuple[NDArray[Any], NDArray[Any]]], prefix: str = "") -> dict[str, torch.Tensor]:
    """Tokens and masks of the completions as TRL's collator pads them."""
    width = max(len(tokens) for tokens, _ in rows)
    names = (f"{prefix}input_ids", f"{prefix}attention_mask", f"{prefix}completion_mask")
    made = {name: torch.zeros((len(rows), width), dtype=torch.int64) for name in names}
    for at, (tokens, mask) in enumerate(rows):
        for name, values in zip(names, (tokens, np.ones(len(tokens)), mask), strict=True):
            made[name][at, : len(tokens)] = torch.from_numpy(values.astype(np.int64))
    return made


def rows_of(batch: TokenBatch) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    ends = batch.row_offsets[1:-1]
    return list(zip(np.split(batch.tokens, ends), np.split(batch.loss_mask, ends), strict=True))


def trainer_of(model: Any, loss: str) -> SimpleNamespace:
    def same(value: Any) -> Any:
        return value

    trainer = SimpleNamespace(
        model=Fused(model),
        ref_model=Fused(model_of(1)),
        accelerator=SimpleNamespace(device="cpu", gather=same, gather_for_metrics=same),
        args=SimpleNamespace(gradient_checkpointing_kwargs=None, gradient_checkpointing=False),
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=False,
        f_divergence_type="reverse_kl",
        beta=BETA,
        loss_types=[loss],
        loss_type=loss,
        loss_weights=[1.0],
        use_weighting=False,
        calculate_KL=True,
        **WEIGHTS,
        _total_train_tokens=0,
        _tp_size=1,
    )
    trainer._compute_kl_logps = lambda model, inputs: TRL.kto_logprobs(trainer, model, inputs)
    return trainer


def assert_same_gradient(model: Any, other: Any) -> None:
    """Compare with the largest entry, because the entries of IPO are up to 20."""
    gradient, expected = gradient_of(model), gradient_of(other)
    assert_close(gradient, expected, [expected], relative=5e-6)


def logprobs_of(trainer: SimpleNamespace) -> NDArray[Any]:
    """Return the terms of sums over a mean completion: log-probs of the policy and of the reference."""
    summed = [*trainer.model.logprobs, *trainer.ref_model.logprobs]
    return torch.cat(summed).numpy() / len(LABELS)


@pytest.mark.parametrize("micro_batch_tokens", [40, 2048])
@pytest.mark.parametrize(("loss", "name"), [("dpo", "sigmoid"), ("ipo", "ipo")])
def test_losses_of_pairs_are_trls(loss: Any, name: str, micro_batch_tokens: int) -> None:
    batch, model, other = batch_of(PAIRS), model_of(0), model_of(0)
    found = ours(model, batch, PreferParams(loss=loss, beta=BETA), micro_batch_tokens)
    rows, trainer = rows_of(batch), trainer_of(other, name)
    expected = TRL.dpo_loss(trainer, trainer.model, padded([*rows[0::2], *rows[1::2]]), False)
    expected.backward()
    terms = logprobs_of(trainer)
    assert_close(found.metrics["loss"], expected.item(), terms, relative=2e-7)
    assert_same_gradient(model, other)
    reported = trainer._metrics["train"]
    assert found.metrics["accuracy"] == pytest.approx(reported["rewards/accuracies"][0])
    for ours_, theirs in (("margin", "margins"), ("chosen_reward", "chosen"), ("rejected_reward", "rejected")):
        assert_close(found.metrics[ours_], reported[f"rewards/{theirs}"][0], terms, relative=2e-7)


@pytest.mark.parametrize("micro_batch_tokens", [40, 2048])
def test_loss_of_labels_is_trls(micro_batch_tokens: int) -> None:
    batch, model, other = batch_of(LABELS), model_of(0), model_of(0)
    found = ours(model, batch, PreferParams(loss="kto", beta=BETA, **WEIGHTS), micro_batch_tokens)
    rows, trainer = rows_of(batch), trainer_of(other, "kto")
    longest = max(len(tokens) for tokens, _ in rows)
    mixed = []
    for place, (tokens, mask) in enumerate(rows):
        prompt, (others, completion) = tokens[~mask], rows[place - 1]
        ids = np.concatenate((prompt, others[completion]))
        mixed.append((ids[:longest], (np.arange(len(ids)) >= len(prompt))[:longest]))
    inputs = padded(rows) | padded(mixed, "KL_") | {"label": torch.tensor([row["label"] for row in LABELS])}
    expected = TRL.kto_loss(trainer, trainer.model, inputs, False)
    expected.backward()
    terms = logprobs_of(trainer)
    assert_close(found.metrics["kl"], trainer._metrics["train"]["kl"][0], terms, relative=2e-7)
    assert_close(found.metrics["loss"], expected.item(), terms, relative=2e-7)
    assert_same_gradient(model, other)
