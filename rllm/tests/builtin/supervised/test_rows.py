"""Rows of data become trained turns with the loss -logprob; a row that cannot be trained on is named."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from expecting import expect_error

from rllm.builtin.supervised.plugin import cross_entropy
from rllm.builtin.supervised.rows import read_row
from rllm.builtin.supervised.stages import make_examples, make_imitation_batch
from rllm.builtin.supervised.turns import ExamplesParams, make_turns
from rllm.rows.problem import RowError
from rllm_core.contracts.loss import LossInput
from rllm_core.contracts.params import NoParams
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Task, TrajectoryGroup
from rllm_core.errors import ConfigError
from rllm_core.rollout.template_renderer import TemplateRenderer

USER, ASSISTANT = {"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}
STOP = ord("$")
DIALOG = [USER, ASSISTANT, USER, ASSISTANT]
FIRST, SECOND = ("u:ab|a:", "cd$"), ("u:ab|a:cd$|u:ab|a:", "cd$")


class Letters:
    """A renderer whose tokens are the letters of a text: `u:ab|a:cd$|a:` is a turn of each role and a prompt."""

    stop_ids = frozenset({STOP})

    def __init__(self, *, forgets: bool = False) -> None:
        self._forgets = forgets
        """True to remove earlier responses from later prompts, as templates do with reasoning."""

    def prompt(self, messages: Any, tools: Any = ()) -> np.ndarray:
        text = "".join(each["function"]["name"] for each in tools)
        for place, message in enumerate(messages):
            is_assistant = message["role"] == "assistant"
            content = "" if is_assistant and self._forgets and place < len(messages) - 1 else message["content"]
            text += f"{message['role'][0]}:{content}{'$' if is_assistant else ''}|"
        return np.array([*map(ord, text + "a:")], np.int32)

    def token_texts(self, token_ids: Any) -> list[str]:
        return [*map(chr, token_ids)]


class AddsStart:
    """A tokenizer of letters that adds ``^`` to the start of each text."""

    bos_token_id, eos_token_id = ord("^"), STOP

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*(map(ord, "^") if add_special_tokens else ()), *map(ord, text)]


def turns_of(row: dict[str, Any], renderer: Any = None, **options: Any) -> list[tuple[str, str]]:
    """Prompt and trained text of each turn."""
    example = read_row(row)
    made = make_turns(example, renderer or Letters(), ExamplesParams(**options))
    return [("".join(map(chr, each.prompt_ids)), "".join(map(chr, each.response_ids))) for each in made]


class WithoutFirstMarks(Letters):
    """A renderer that writes no token for an empty user message."""

    def prompt(self, messages: Any, tools: Any = ()) -> np.ndarray:
        return super().prompt(messages, tools)[len("u:|a:") :]


def test_row_without_a_first_token_is_an_error() -> None:
    row = {"messages": [{"role": "user", "content": ""}, ASSISTANT]}
    with pytest.raises(RowError, match="has no token before its first response"):
        turns_of(row, WithoutFirstMarks())


def batch_of(row: dict[str, Any], renderer: Any) -> TokenBatch:
    (episode,) = make_examples(Task(id="0", data=row), renderer, ExamplesParams())
    return make_imitation_batch(build_batch([TrajectoryGroup(group_id="0:a", trajectories=episode.trajectories)]))


@pytest.mark.parametrize(
    ("row", "options", "turns"),
    [
        ({"messages": [*DIALOG, USER]}, {}, [FIRST, SECOND]),
        ({"messages": DIALOG}, {"train_on": "last"}, [SECOND]),
        ({"messages": DIALOG}, {"train_on": "all"}, [("u", ":ab|a:cd$|u:ab|a:cd$")]),
        ({"prompt": DIALOG[:3], "completion": [ASSISTANT]}, {}, [SECOND]),
        ({"messages": DIALOG[:2], "tools": [{"name": "add"}]}, {}, [("addu:ab|a:", "cd$")]),
        ({"messages": [USER, ASSISTANT | {"weight": 0}, USER, ASSISTANT | {"weight": 1}]}, {}, [SECOND]),
    ],
)
def test_assistant_messages_are_trained(row: dict[str, Any], options: dict[str, Any], turns: list[Any]) -> None:
    assert turns_of(row, **options) == turns


@pytest.mark.parametrize(
    ("row", "turn"),
    [
        ({"text": "abc"}, ("^", "abc$")),
        ({"prompt": "ab", "completion": "c$"}, ("^ab", "c$")),
        # A template rendered these.
        ({"text": "^abc$"}, ("^", "abc$")),
        ({"text": "^abc!\n"}, ("^", "abc!")),
        ({"prompt": "^ab", "completion": "c"}, ("^ab", "c$")),
        ({"text": "abc\n"}, ("^", "abc\n$")),
    ],
    ids=str,
)
def test_text_has_each_special_token_once(row: dict[str, Any], turn: tuple[str, str]) -> None:
    renderer = TemplateRenderer(cast("Any", AddsStart()), [STOP, ord("!")])
    assert turns_of(row, renderer) == [turn]


def test_turns_share_a_row_if_prompts_extend_them() -> None:
    row = {"messages": DIALOG}
    assert batch_of(row, Letters()).n_rows == 1
    assert batch_of(row, Letters(forgets=True)).n_rows == 2


def test_imitation_batch_has_equal_tokens_and_no_ratios() -> None:
    batch = batch_of({"messages": [USER, ASSISTANT]}, Letters())
    assert batch.advantages is not None
    assert batch.old_logprobs is not None
    assert batch.advantages.tolist() == batch.loss_mask.astype(float).tolist()
    assert np.isnan(batch.old_logprobs).tolist() == batch.loss_mask.tolist()


CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "hidden"),
    [
        (ASSISTANT | {"reasoning_content": "why"}, "messages[1].reasoning_content"),
        (ASSISTANT | {"tool_calls": [CALL]}, "messages[1].tool_calls[0].function.name"),
        (ASSISTANT | {"name": "ann"}, "messages[1].name"),
    ],
)
def test_row_with_a_hidden_part_is_named(message: dict[str, Any], hidden: str) -> None:
    with expect_error(ConfigError, "bad-row", "'0'", hidden):
        batch_of({"messages": [USER, message]}, Letters())


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"question": "ab"},
        {"messages": [USER]},
        {"messages": [USER, ASSISTANT | {"weight": 0}]},
        {"messages": [ASSISTANT]},
        {"messages": [USER, ASSISTANT], "system": "Be brief."},
        {"prompt": "ab", "completion": [ASSISTANT]},
        {"prompt": [USER, ASSISTANT], "completion": [USER]},
    ],
    ids=str,
)
def test_row_without_trained_tokens_is_named(row: dict[str, Any]) -> None:
    with expect_error(ConfigError, "bad-row", "'7'"):
        make_examples(Task(id="7", data=row), Letters(), ExamplesParams())


@pytest.mark.parametrize(("train_on", "weights"), [("all", (0, 1)), ("last", (1, 0))])
def test_untrained_message_is_no_part_of_other_choices(train_on: Any, weights: tuple[int, int]) -> None:
    messages = [each for weight in weights for each in (USER, ASSISTANT | {"weight": weight})]
    with pytest.raises(RowError, match=r"weight.* 0"):
        turns_of({"messages": messages}, train_on=train_on)


def test_template_hiding_trained_tokens_is_an_error() -> None:
    class EndsNowhere(Letters):
        stop_ids = frozenset({-1})

    class Rewrites(Letters):
        def prompt(self, messages: Any, tools: Any = ()) -> np.ndarray:
            return super().prompt(messages, tools)[len(messages) - 1 :]

    with expect_error(ConfigError, "unsupported-chat-template", "'cd'"):
        turns_of({"messages": [USER, ASSISTANT]}, EndsNowhere())
    with expect_error(ConfigError, "bad-row", "'0'", "messages[1]", "prompt has 'u:ab|a:'", "rllm.renderer"):
        batch_of({"messages": [USER, ASSISTANT]}, Rewrites())
    with expect_error(ConfigError, "renderer-without-tokenizer"):
        turns_of({"text": "ab"}, Letters())


def test_cross_entropy_ignores_advantages_and_ratios() -> None:
    import torch

    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    inputs = LossInput(
        logprobs=logprobs,
        old_logprobs=torch.full((2,), torch.nan),
        advantages=torch.tensor([-3.0, 1.0]),
        row_ids=torch.tensor([0, 0]),
    )
    losses = cross_entropy(inputs, NoParams())
    losses.sum().backward()
    assert losses.tolist() == [0.5, 2.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, -1.0]
