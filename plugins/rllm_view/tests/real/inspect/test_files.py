"""Logs that inspect-ai writes: `rllm view` shows the counts, rewards and text that its own reader returns."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Epochs, Task, eval as evaluate
from inspect_ai._util import zipfile as written_zipfile
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample, read_eval_log, write_eval_log
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Target, match, mean, scorer, value_to_float
from inspect_ai.solver import TaskState, generate, solver, use_tools
from inspect_ai.tool import tool
from opening import Shown, open_file

from rllm_core.data.types import TerminationReason
from rllm_record.interchange.formats import read_file

# Its requirements are used in deprecated ways.
pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = "mockllm/model"
PICTURE = "data:image/png;base64,AAAA"
ODD_SCORES = [float("nan"), {"x": 1, "y": float("nan")}, "yes", "0.25", [1, 2], 1, True, "nothing"]


@tool
def add() -> Any:
    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: first number
            b: second number
        """
        return str(a + b) if a < 7 else "long " * 3_000

    return execute


@scorer(metrics=[mean()])
def odd() -> Any:
    values = iter(ODD_SCORES * 9)

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=next(values))

    return score


@solver
def fail() -> Any:
    async def solve(state: TaskState, _: Any) -> TaskState:
        if state.sample_id == 3:
            raise ValueError("broken sample")
        return state

    return solve


def answers() -> Iterator[ModelOutput]:
    """A call of a tool, a message in parts with reasoning, and a message with unusual characters, again and again."""
    for number in range(1, 1_000, 3):
        yield ModelOutput.for_tool_call(MODEL, "add", {"a": number, "b": 1})
        parts = [ContentReasoning(reasoning="one\nmore"), ContentText(text=f"It is {number}"), ContentText(text="?")]
        message = ChatMessageAssistant(content=parts, source="generate")
        yield ModelOutput(model=MODEL, choices=[ChatCompletionChoice(message=message)])
        yield ModelOutput.from_content(MODEL, f"answer {number}\u2028\U0001f600")


def run(directory: Path, log_format: str) -> Path:
    """Evaluate three samples in four epochs: with tools, with a conversation as input, and with an error."""
    conversation = [
        ChatMessageSystem(content="Add."),
        ChatMessageUser(content=[ContentText(text="See"), ContentImage(image=PICTURE), ContentText(text="this")]),
        ChatMessageAssistant(content="4"),
        ChatMessageUser(content="again"),
    ]
    model = get_model(MODEL, custom_outputs=answers())

    async def count_tokens(text: str) -> int:
        return len(text)

    # Its own tokenizer would be downloaded.
    model.api.count_text_tokens = count_tokens
    samples = [Sample(id=1, input="1 + 1"), Sample(id="two", input=conversation), Sample(id=3, input="fails")]
    task = Task(
        name="sums",
        dataset=samples,
        solver=[use_tools(add()), fail(), generate()],
        scorer=[match(), odd()],
        epochs=Epochs(4, "mean"),
        message_limit=4,
    )
    options = {"log_dir": str(directory), "log_format": log_format, "display": "none", "max_samples": 1}
    (log,) = evaluate(task, model=model, fail_on_error=False, **options)
    return Path(log.location)


def reward_of(sample: EvalSample) -> float | None:
    """The mean of the scores that inspect-ai converts to numbers, without NaN."""
    values = [each.value for each in (sample.scores or {}).values()]
    numbers = [value_to_float()(value) for value in values if not isinstance(value, dict | list) and value != "nothing"]
    known = [number for number in numbers if not isnan(number)]
    return sum(known) / len(known) if known else None


def texts_of(shown: Shown) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for prompts, response in zip(shown.prompts, shown.responses, strict=True):
        found += [*prompts, ("assistant", response or "")]
    return found


def assert_shows(text: tuple[str, str], message: ChatMessage) -> None:
    """The page has the text of all parts, without line breaks between them. A response also has reasoning and tools."""
    parts = [ContentText(text=message.content)] if isinstance(message.content, str) else message.content
    plain = "".join(part.text for part in parts if isinstance(part, ContentText))
    assert text[0] == message.role
    if not isinstance(message, ChatMessageAssistant) or message.source != "generate":
        assert text[1] == plain
        return
    reasoning = [f"<think>\n{part.reasoning}\n</think>\n" for part in parts if isinstance(part, ContentReasoning)]
    assert text[1].startswith("".join(reasoning) + plain)
    assert all(f'"name": "{call.function}"' in text[1] for call in message.tool_calls or ())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("logs"), "eval")


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_view_shows_an_evaluation_of_inspect(tmp_path: Path, log: Path, log_format: str) -> None:
    file = log if log_format == "eval" else run(tmp_path, "json")
    samples = read_eval_log(str(file), resolve_attachments="full").samples or []
    by_task = sorted(samples, key=lambda each: (f"sums/{each.id}", each.epoch))

    shown = open_file(file)

    assert len(shown) == 12
    assert [(each.task, each.reward) for each in shown] == [(f"sums/{each.id}", reward_of(each)) for each in by_task]
    for each, sample in zip(shown, by_task, strict=True):
        found = texts_of(each)
        if len(found) > len(sample.messages):
            # Messages without a response are a turn with an empty one.
            assert found.pop() == ("assistant", "")
        assert len(found) == len(sample.messages)
        for text, message in zip(found, sample.messages, strict=True):
            assert_shows(text, message)
    assert {"message", None} == {each.limit and each.limit.type for each in samples}


def test_reasons_and_errors_are_those_of_inspect(log: Path) -> None:
    samples = {(f"sums/{each.id}", each.epoch): each for each in read_eval_log(str(log)).samples or []}
    for each in read_file(log):
        trajectory = each.episode.trajectories[0]
        sample = samples[each.episode.task_id, trajectory.info["inspect"]["epoch"]]
        assert each.episode.error == (sample.error.message if sample.error else "")
        assert (each.episode.termination_reason == TerminationReason.MAX_TURNS_EXCEEDED) == bool(sample.limit)


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_log_without_samples_has_no_episodes(tmp_path: Path, log: Path, log_format: str) -> None:
    for samples in ([], None):
        file = tmp_path / f"empty.{log_format}"
        write_eval_log(read_eval_log(str(log)).model_copy(update={"samples": samples}), str(file))
        assert open_file(file) == []


def test_large_samples_have_several_zstandard_frames(tmp_path: Path, log: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(written_zipfile, "_MAX_INPUT_PER_FRAME", 100)
    write_eval_log(read_eval_log(str(log)), str(tmp_path / "frames.eval"))
    assert open_file(tmp_path / "frames.eval") == open_file(log)


def test_later_record_of_a_sample_is_used(tmp_path: Path, log: Path) -> None:
    first = read_eval_log(str(log))
    samples = first.samples or []
    again = [sample.model_copy(update={"scores": {"match": Score(value=7)}}) for sample in samples]
    write_eval_log(first.model_copy(update={"samples": samples + again}), str(tmp_path / "two.eval"))
    assert [each.reward for each in open_file(tmp_path / "two.eval")] == [7.0] * 12
