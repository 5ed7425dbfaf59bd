"""Fine-tuning: rows, masks, loss and gradient are TRL's, and the loss is Hugging Face's `model(labels=…)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import peers
import pytest
import torch
from close import assert_close
from local_models import gradient_of, make_plan, make_updater

from rllm.builtin.supervised.plugin import cross_entropy
from rllm.builtin.supervised.stages import make_examples, make_imitation_batch
from rllm.builtin.supervised.turns import ExamplesParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Task, TrajectoryGroup
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import tiny

IGNORED = -100
GENERATION = "{% generation %}{{ message.content }}<end>{% endgeneration %}"
MESSAGE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}=" + GENERATION + "AFTER"
    "{%- elif message.role == 'system' -%}<system>{{ message.content }}<end>"
    "{%- else -%}{{ message.content }}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}={%- endif -%}"
)
TEMPLATES = {
    "nothing after a turn": MESSAGE.replace("AFTER", ""),
    "a line break": MESSAGE.replace("AFTER", "{{ '\\n' }}"),
}
CONVERSATION = [
    {"role": "system", "content": "guess"},
    {"role": "user", "content": "1 plus 2 is"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "higher"},
    {"role": "assistant", "content": "4, or lower"},
]
ROWS: Sequence[Mapping[str, Any]] = (
    {"messages": CONVERSATION},
    {"messages": CONVERSATION[1:3]},
    {"prompt": CONVERSATION[:4], "completion": CONVERSATION[4:]},
    {"prompt": "1 plus 1", "completion": " is 2<end>"},
    {"text": "the number is 31<end>"},
)
TRL = peers.trl_sft()


@pytest.fixture(params=TEMPLATES)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = TEMPLATES[request.param]
    return tokenizer


def ours(tokenizer: Any, rows: Sequence[Mapping[str, Any]], train_on: Any = "assistant") -> TokenBatch:
    renderer = TemplateRenderer(tokenizer, [tokenizer.eos_token_id])
    groups = []
    for number, row in enumerate(rows):
        (episode,) = make_examples(Task(id=str(number), data=row), renderer, ExamplesParams(train_on=train_on))
        groups.append(TrajectoryGroup(group_id=f"{number}:assistant", trajectories=episode.trajectories))
    return make_imitation_batch(build_batch(groups))


def theirs(tokenizer: Any, row: Mapping[str, Any], *, assistant_only: bool) -> dict[str, list[int]]:
    """TRL's ids and labels of a row."""
    made = TRL.tokenize(dict(row), tokenizer, "text", assistant_only, tokenizer.chat_template)
    columns = [name for name in ("completion_mask", "assistant_masks") if name in made]
    return {"input_ids": made["input_ids"], **TRL.build_labels(made, columns)}


def labels_of(batch: TokenBatch) -> list[int]:
    return np.where(batch.loss_mask, batch.tokens, IGNORED).tolist()


@pytest.mark.parametrize("row", [row for row in ROWS if "messages" in row], ids=str)
def test_assistant_turns_are_trls_assistant_masks(tokenizer: Any, row: Mapping[str, Any]) -> None:
    batch, expected = ours(tokenizer, [row]), theirs(tokenizer, row, assistant_only=True)
    size = len(batch.tokens)
    assert batch.tokens.tolist() == expected["input_ids"][:size]
    assert labels_of(batch) == expected["labels"][:size]
    assert set(expected["labels"][size:]) <= {IGNORED}


@pytest.mark.parametrize("row", [row for row in ROWS if "completion" in row or "text" in row], ids=str)
def test_completions_are_trls_up_to_the_stop_token(tokenizer: Any, row: Mapping[str, Any]) -> None:
    batch, expected = ours(tokenizer, [row]), theirs(tokenizer, row, assistant_only=False)
    size = len(batch.tokens)
    assert batch.tokens.tolist() == expected["input_ids"][:size]
    # The first token of a text has no prediction in either.
    assert labels_of(batch)[1:] == expected["labels"][1:size]
    # TRL also trains what the template writes after the stop token, which no model samples.
    after = tokenizer.decode(expected["input_ids"][size:])
    assert after == ("\n" if isinstance(row.get("prompt"), list) and "'\\n'" in tokenizer.chat_template else "")


def test_all_tokens_are_trls_default_for_messages(tokenizer: Any) -> None:
    batch = ours(tokenizer, ROWS[:1], "all")
    expected = theirs(tokenizer, ROWS[0], assistant_only=False)
    assert labels_of(batch)[1:] == expected["labels"][1 : len(batch.tokens)]
    assert not batch.loss_mask[0]


def test_last_turn_is_a_part_of_the_assistants(tokenizer: Any) -> None:
    every, last = ours(tokenizer, ROWS[:1]), ours(tokenizer, ROWS[:1], "last")
    assert last.tokens.tolist() == every.tokens.tolist()
    assert tokenizer.decode(last.tokens[last.loss_mask]) == "4, or lower<end>"


@pytest.mark.parametrize("micro_batch_tokens", [40, 2048])
def test_loss_and_gradient_are_trls_and_hugging_faces(tokenizer: Any, micro_batch_tokens: int) -> None:
    batch = ours(tokenizer, ROWS)
    model = tiny.build_model(len(tokenizer), 0)
    plan = make_plan(dict.fromkeys(batch.roles, cross_entropy), aggregation="token-mean")
    updater = make_updater(model, learning_rate=1e-12, max_tokens_per_microbatch=micro_batch_tokens)
    loss = updater.update(batch, plan).metrics["actor/loss"]
    gradient = gradient_of(model)

    rows = [
        {"input_ids": batch.tokens[a:b].tolist(), "labels": labels_of(batch)[a:b]}
        for a, b in zip(batch.row_offsets, batch.row_offsets[1:], strict=False)
    ]
    collated = TRL.collate(
        SimpleNamespace(padding_free=False, return_position_ids=False, pad_token_id=0, pad_to_multiple_of=None), rows
    )
    for compute in (trl_loss, hugging_face_loss):
        other = tiny.build_model(len(tokenizer), 0)
        expected = compute(other, dict(collated))
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        assert_close(gradient, gradient_of(other), [gradient_of(other)], relative=5e-6)


def hugging_face_loss(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    return model(**inputs).loss


def trl_loss(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """SFTTrainer.compute_loss with the outputs of its fused head, computed plainly."""

    def fused(labels: torch.Tensor, fused_lm_head: bool, **others: Any) -> Any:
        logprobs = torch.log_softmax(model(**others).logits[:, :-1].float(), -1)
        mask = labels[:, 1:] != IGNORED
        of_labels = logprobs.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
        return SimpleNamespace(
            log_probs=torch.where(mask, of_labels, 0.0), label_mask=mask, entropy=mask.float(), is_top1=mask
        )

    trainer = SimpleNamespace(
        model=model,
        aux_loss_enabled=False,
        compute_loss_func=None,
        label_smoother=None,
        accelerator=SimpleNamespace(gather_for_metrics=lambda value: value, parallelism_config=None),
        args=SimpleNamespace(loss_type="nll", average_tokens_across_devices=False),
        _metrics={mode: {"entropy": [], "mean_token_accuracy": []} for mode in ("train", "eval")},
        _total_train_tokens=0,
        _tp_size=1,
    )
    return TRL.loss(trainer, fused, inputs)
