"""Reasoning is removed from the prompts of later turns, and is still trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.contracts import Outcome, WorkflowContext
from rllm_core.data.batch import build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.rollout.conversation import Conversation, without_reasoning
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.rollout.workflows import MultiTurnWorkflow

from .conftest import FunctionEnvironment

MakeContext = Callable[..., WorkflowContext]
STOP, THINK, END = ord("$"), ord("{"), ord("}")


class ReasoningTokenizer:
    """One token per character; ``<think>`` is the one token ``{`` and ``</think>`` the one token ``}``."""

    def __init__(self, opening: str = "") -> None:
        self.opening = opening
        """What the template puts at the end of a prompt."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        said = [f"<{m['role'][0]}>{m['content']}{'$' if m['role'] == 'assistant' else ''}" for m in conversation]
        return "".join(said) + "<a>" + self.opening

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text.replace("<think>", "{").replace("</think>", "}")]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


@dataclass
class FinishedRollout:
    """Prompts of the model calls, and their trajectory."""

    prompts: list[str]
    trajectory: Trajectory


@pytest.fixture
def roll_out(engine: Any, context: MakeContext) -> Callable[..., FinishedRollout]:
    """Return a function that runs turns with these responses. The observation after each is ``x``."""

    def run(*responses: str, opening: str = "", accumulate: bool = False, tokenizer: Any = None) -> FinishedRollout:
        remaining = iter(responses)
        engine.renderer = TemplateRenderer(tokenizer or ReasoningTokenizer(opening), [STOP])
        engine.answer = lambda prompt, sampling: next(remaining)
        made = context(
            make_environment=lambda: FunctionEnvironment(step=lambda action: Outcome(observation="x")),
            max_steps=len(responses),
            accumulate_reasoning=accumulate,
        )
        episode = asyncio.run(MultiTurnWorkflow(made).run({}, "t:0"))
        return FinishedRollout(engine.prompts, episode.trajectories[0])

    return run


def _text(tokens: Any) -> str:
    return "".join(chr(token) for token in tokens)


OPENED = "<think>\n"


@pytest.mark.parametrize(
    ("responses", "opening", "prompts"),
    [
        (["{hm}one$", "{so}two$", "three$"], "", ["<u>go<a>one$<u>x<a>", "<u>go<a>one$<u>x<a>two$<u>x<a>"]),
        # The mark that the template put at the end of the prompt is removed too.
        (
            ["hm}one$", "so}two$", "ah}three$"],
            OPENED,
            ["<u>go<a>one$<u>x<a>{\n", "<u>go<a>one$<u>x<a>two$<u>x<a>{\n"],
        ),
        (["{a}b{c}d$", "e$"], "", ["<u>go<a>d$<u>x<a>"]),
        # Only reasoning. The stop token the model did not sample is the template's to write.
        (["{hm}", "e$"], "", ["<u>go<a>$<u>x<a>"]),
        (["{hm}$", "e$"], "", ["<u>go<a>$<u>x<a>"]),
        # Unfinished reasoning is unchanged, and an empty part of the template breaks nothing.
        (["{hm$", "one$"], "", ["<u>go<a>{hm$<u>x<a>"]),
        (["{hm$", "one$"], OPENED, ["<u>go<a>{\n{hm$<u>x<a>{\n"]),
        (["one$", "two$"], "<think>\n</think>\n", ["<u>go<a>{\n}\none$<u>x<a>{\n}\n"]),
    ],
)
def test_later_prompts_have_no_reasoning(roll_out: Any, responses: list[str], opening: str, prompts: list[str]) -> None:
    rollout = roll_out(*responses, opening=opening)
    assert rollout.prompts[1:] == prompts
    removed = sum("}" in response for response in responses[:-1])
    assert rollout.trajectory.tokens.prefix_breaks == removed


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("opening", ["", "<think>"])
def test_cut_off_reasoning_is_closed_in_next_prompt(roll_out: Any, opening: str, accumulate: bool) -> None:
    cut_off = "hm" if opening else "{hm"
    rollout = roll_out(cut_off, "one$", opening=opening, accumulate=accumulate)
    assert rollout.prompts[1].startswith("<u>go<a>{hm}$<u>x<a>")
    tokens = rollout.trajectory.tokens
    assert _text(tokens.ids[tokens.sampled]) == f"{cut_off}one$"
    assert tokens.prefix_breaks == 0


@pytest.mark.parametrize(
    ("prompt", "response", "closing"),
    [
        ("go", "{hm", "}$"),
        ("go{", "hm", "}$"),
        ("go{", "", "}$"),
        ("go", "{a}b{c", "}$"),  # two reasoning parts
        ("go{", "a}b", "$"),
        ("go{}", "a", "$"),
        ("go", "a", "$"),
        ("go", "{hm$", ""),  # the model ended its turn itself
    ],
)
def test_only_what_is_open_is_closed(prompt: str, response: str, closing: str) -> None:
    tokenizer: Any = ReasoningTokenizer()
    said = [*map(ord, prompt)], [*map(ord, response)]
    bridged = TemplateRenderer(tokenizer, [STOP]).bridge(*said, [{"role": "user", "content": "x"}])
    assert _text(bridged) == f"{prompt}{response}{closing}<u>x<a>"


def test_reasoning_is_kept_if_set_or_without_marks(roll_out: Any, tokenizer: Any) -> None:
    for settings, opened in (({"opening": "<think>", "accumulate": True}, "{"), ({"tokenizer": tokenizer}, "")):
        rollout = roll_out("{hm}one$", "two$", **settings)
        assert rollout.prompts[-1] == f"<u>go<a>{opened}{{hm}}one$<u>x<a>{opened}"
        assert rollout.trajectory.tokens.prefix_breaks == 0


def _converse(engine: Any, made: WorkflowContext, *said: tuple[str, str]) -> FinishedRollout:
    """Run a conversation with these messages, each as (role, content)."""
    conversation = Conversation(made, Trajectory("agent"), "s")

    async def go() -> None:
        for role, content in said:
            conversation.add_observation([{"role": role, "content": content}])
            await conversation.generate()

    asyncio.run(go())
    return FinishedRollout(engine.prompts, conversation.trajectory)


@pytest.mark.parametrize("opening", ["", "<think>"])
def test_reasoning_stays_until_the_next_user_message(engine: Any, context: MakeContext, opening: str) -> None:
    start_mark = "" if opening else "{"
    responses = iter([f"{start_mark}a}}call$", f"{start_mark}b}}more", "one$", f"{start_mark}c}}two$", "end$"])
    engine.renderer = TemplateRenderer(ReasoningTokenizer(opening), [STOP])
    engine.answer = lambda prompt, sampling: next(responses)
    said = [("user", "go"), ("tool", "1"), ("tool", "2"), ("user", "x"), ("user", "y")]
    rollout = _converse(engine, context(), *said)
    start, opened = "<u>go<a>{", "{" if opening else ""
    assert [prompt.replace("<think>", "{") for prompt in rollout.prompts[1:3]] == [
        f"{start}a}}call$<t>1<a>{opened}",
        f"{start}a}}call$<t>1<a>{{b}}more$<t>2<a>{opened}",
    ]
    cut = "<u>go<a>call$<t>1<a>more$<t>2<a>"
    # The last response of the cycle has no reasoning, so the mark that the template opened is unchanged.
    assert rollout.prompts[3].startswith(f"{cut}{opened}one")
    assert rollout.trajectory.tokens.prefix_breaks == 2


def test_rerendered_response_keeps_reasoning_until_user_message(engine: Any, context: MakeContext) -> None:
    class Rewriting(TemplateRenderer):
        shown: ClassVar[list[Any]] = []

        def prompt(self, messages: Any, tools: Any = ()) -> Any:
            self.shown.append([message.get("reasoning_content") for message in messages])
            return super().prompt(messages, tools)

        def bridge(self, *arguments: Any) -> Any:
            return None

    responses = iter(["{a}call$", "{b}one$", "two$"])
    engine.renderer = Rewriting(ReasoningTokenizer(), [STOP])  # type: ignore[arg-type]
    engine.answer = lambda prompt, sampling: next(responses)
    _converse(engine, context(), ("user", "go"), ("tool", "1"), ("user", "x"))
    assert Rewriting.shown == [[None], [None, "a", None], [None, None, None, None, None]]


def test_sampled_tokens_follow_what_the_model_saw(roll_out: Callable[..., FinishedRollout]) -> None:
    responses = ["{hm}one$", "two$", "{so}three$", "four$"]
    rollout = roll_out(*responses)
    assert [step.response_ids.tolist() for step in rollout.trajectory.steps] == [
        [ord(character) for character in response] for response in responses
    ]
    assert [_text(step.prompt_ids) for step in rollout.trajectory.steps] == rollout.prompts
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=[rollout.trajectory])])
    rows = [
        (_text(batch.tokens[start:end]), _text(batch.tokens[start:end][batch.loss_mask[start:end]]))
        for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False)
    ]
    # A turn with reasoning ends its row, because the next prompt does not extend it.
    assert rows == [
        ("<u>go<a>{hm}one$", "{hm}one$"),
        ("<u>go<a>one$<u>x<a>two$<u>x<a>{so}three$", "two${so}three$"),
        ("<u>go<a>one$<u>x<a>two$<u>x<a>three$<u>x<a>four$", "four$"),
    ]
    assert batch.sampling_logprobs[batch.loss_mask].tolist() == [-0.5] * sum(map(len, responses))
    assert rollout.trajectory.tokens.prefix_breaks == 2


tokens = st.lists(st.sampled_from([THINK, END, 1, 2, 3]), max_size=12).map(lambda ids: np.array(ids, np.int32))


@given(tokens, tokens)
def test_opening_and_reasoning_are_removed(prompt: np.ndarray[Any, Any], response: np.ndarray[Any, Any]) -> None:
    kept = np.concatenate(without_reasoning(prompt, response, (THINK, END))).tolist()
    if END not in response:
        assert kept == [*prompt, *response]
        return
    said = response.tolist()[response.size - response.tolist()[::-1].index(END) :]
    # Only the end of the prompt is looked at: what a user said about thinking stays.
    tail = prompt[-4:].tolist()
    opening = tail[len(tail) - 1 - tail[::-1].index(THINK) :] if THINK in tail else []
    assert kept == [*prompt.tolist()[: prompt.size - len(opening)], *said]


@pytest.mark.parametrize(
    ("prompt", "response", "reasoning", "content"),
    [
        ("go", "{7}8$", "7", "8"),
        ("go{", "7}8$", "7", "8"),
        ("go{", "7", "7", ""),  # cut off: the template opened the reasoning
        ("go", "{7", "7", ""),
        ("go", "{7}8{9}10$", "789", "10"),
        ("go{}", "8$", None, "8"),  # the template closed them again: no thinking was asked for
        ("go", "8$", None, "8"),
        ("a{b} and more", "8$", None, "8"),  # a user wrote about thinking
    ],
)
def test_response_is_split_into_reasoning_and_content(prompt: str, response: str, reasoning: Any, content: str) -> None:
    tokenizer: Any = ReasoningTokenizer()
    parsed = TemplateRenderer(tokenizer, [STOP]).parse([*map(ord, prompt)], [*map(ord, response)])
    assert (parsed.reasoning, parsed.content, parsed.text) == (reasoning, content, response.rstrip("$"))


STOP = ord("$")


TOOLS = [{"type": "function", "function": {"name": "add"}}]


class Rewriting(TemplateRenderer):
    """As some models' templates, it has no next prompt that begins with the last one."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, [STOP])
        self.tools: list[Any] = []

    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        self.tools.append(tools)
        return super().prompt([{"role": "system", "content": str(len(messages))}, *messages])

    def bridge(self, *arguments: Any) -> Any:
        return None


def test_without_a_bridge_the_history_is_rendered(engine: Any, tokenizer: Any, context: Any) -> None:
    responses = iter(["one$", "two", "three$"])
    engine.answer = lambda prompt, sampling: next(responses)
    engine.renderer = Rewriting(tokenizer)
    trajectory = Trajectory("agent")
    conversation = Conversation(context(), trajectory, "s", TOOLS)

    async def converse() -> None:
        for said in ("a", "b", "c"):
            conversation.add_observation(said)
            await conversation.generate()

    asyncio.run(converse())
    assert engine.prompts == [
        "<s>1<u>a<a>",
        "<s>3<u>a<a>one$<u>b<a>",
        "<s>5<u>a<a>one$<u>b<a>two$<u>c<a>",
    ]
    assert engine.renderer.tools == [TOOLS] * 3
    assert ["".join(map(chr, step.response_ids)) for step in trajectory.steps] == ["one$", "two", "three$"]
    assert trajectory.tokens.prefix_breaks == 2


def test_a_response_says_how_it_ended(engine: Any, context: Callable[..., WorkflowContext]) -> None:
    engine.answer = lambda prompt, sampling: "too long"
    conversation = Conversation(context(), Trajectory("agent"), "s")
    conversation.add_observation("hi")
    response = conversation.parse_step(asyncio.run(conversation.generate()))
    assert (response.content, response.finish_reason) == ("too long", "length")
