"""Files that NeMo-Gym writes: `rllm view` shows the rewards, text and tokens that a script finds in their JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nemo_gym
import pytest
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from opening import Shown, open_file

from rllm_core.data.types import TerminationReason
from rllm_record.interchange.formats import format_of, read_file

SHIPPED = sorted(Path(nemo_gym.__file__).parents[1].glob("*/*/data/example_rollouts.jsonl"))
"""Rollouts of its environments with real models, which the package contains."""


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def texts_of(value: Any) -> list[str]:
    """The text of content."""
    parts = [value] if isinstance(value, str) else [part.get("text", part.get("refusal", "")) for part in value or ()]
    return [part for part in parts if part]


def texts_in(items: list[dict[str, Any]]) -> Iterator[str]:
    """All text of items, in order, and the names of called functions."""
    for item in items:
        yield from texts_of(item.get("content"))
        yield from texts_of(item.get("summary"))
        yield from texts_of(item.get("output"))
        if item.get("type") == "function_call":
            yield f'"name": "{item["name"]}"'


def assert_shows(shown: Shown, row: dict[str, Any]) -> None:
    """The page has the reward and all text of a row, in order, and no text of a message twice."""
    assert shown.reward == row["reward"]
    params, output = row["responses_create_params"], row["response"]["output"]
    given = params["input"]
    # Reasoning and calls of earlier responses are in "whole message" on the page.
    items = [{"content": given}] if isinstance(given, str) else [each for each in given if "role" in each]
    # Agents of aviary write the conversation again after each turn.
    items = [*items, *(output[-1] if output and isinstance(output[0], list) else output)]
    page = "\n".join(
        "\n".join([*(text for _, text in prompts), response or ""])
        for prompts, response in zip(shown.prompts, shown.responses, strict=True)
    )
    end = 0
    for text in [*texts_of(params.get("instructions")), *texts_in(items)]:
        start = page.index(text, end)
        assert '"content"' not in page[end:start]
        end = start + len(text)


def is_rollouts(file: Path) -> bool:
    try:
        return "response" in read_rows(file)[0]
    except ValueError:
        return False


@pytest.mark.parametrize("file", [*filter(is_rollouts, SHIPPED)], ids=lambda file: file.parts[-3])
def test_view_shows_the_rollouts_of_an_environment(file: Path) -> None:
    rows, found = read_rows(file), read_file(file)
    places = {each.trajectories[0].uid: row for each, row in zip(found, rows, strict=True)}
    shown = open_file(file)
    assert len(shown) == len(rows)
    for each, uid in zip(shown, sorted(places), strict=True):
        assert_shows(each, places[uid])
    for each, row in zip(found, rows, strict=True):
        tokens = [
            (item["prompt_token_ids"], item["generation_token_ids"], item["generation_log_probs"])
            for item in row["response"]["output"]
            if isinstance(item, dict) and "generation_token_ids" in item
        ]
        steps = each.trajectories[0].trajectory.steps
        if tokens:
            assert [(step.prompt_ids.tolist(), step.response_ids.tolist()) for step in steps] == [
                (prompt, response) for prompt, response, _ in tokens
            ]
            assert [step.logprobs.tolist() for step in steps] == [pytest.approx(logprobs) for *_, logprobs in tokens]


def test_package_contains_many_rollouts() -> None:
    assert sum(map(is_rollouts, SHIPPED)) > 80


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
QUESTION = [{"type": "input_text", "text": "See"}, PICTURE, {"type": "input_text", "text": "this"}]
MODEL = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "add", "arguments": '{"a": 1}'}


def message(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "m", "role": "assistant", "content": content, **more}


TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.5, -0.25]}
OUTPUTS = [
    [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "one"}]},
        call(1),
        call(2),
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": "3"},
        message("It is", " 2\u2028"),
    ],
    [message("first", **TOKENS), message("second", **TOKENS | {"prompt_token_ids": [1, 2, 3, 4, 5]})],
    [],
    [{**message(), "content": [{"type": "refusal", "refusal": "I cannot."}]}],
    [call(1), {"type": "function_call_output", "call_id": "c1", "output": "2"}],
]
REWARDS = [1.0, float("nan"), 0, -0.5, 2]


class Collection(RolloutCollectionHelper):
    """NeMo-Gym's collection, with the responses of agents without servers. A task fails, and a task is not written."""

    def run_examples(self, examples: list[dict[str, Any]], **_: Any) -> Iterator[Any]:
        async def run(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            number = row["_ng_task_index"]
            response = NeMoGymResponse.model_validate(
                MODEL | {"output": OUTPUTS[number], "parallel_tool_calls": True, "tool_choice": "auto"}
            ).model_dump()
            response["incomplete_details"] = {"reason": "max_output_tokens"} if number == 3 else None
            result = {"responses_create_params": row["responses_create_params"], "response": response}
            failure = {4: {"_ng_failure_class": "timeout_exceeded"}}.get(number, {})
            return row, {**result, "reward": REWARDS[number], "score": number, **failure}

        return (run(row) for row in examples)


def test_view_shows_collected_rollouts(tmp_path: Path) -> None:
    inputs = ["1+1", [{"role": "user", "content": QUESTION, "type": "message"}], "third", "fourth", "fails"]
    rows = [{"responses_create_params": {"input": each, "instructions": "Add."}} for each in inputs]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = RolloutCollectionConfig(
        agent_name="adder",
        input_jsonl_fpath=str(tmp_path / "in.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        num_repeats=2,
        disable_aggregation=True,
        upload_rollouts_to_wandb=False,
    )
    asyncio.run(Collection().run_from_config(config))
    rows = read_rows(tmp_path / "out.jsonl")

    shown = open_file(tmp_path / "out.jsonl")

    assert [each.task for each in shown] == [f"adder/{number}" for number in (0, 0, 1, 1, 2, 2, 3, 3)]
    for each, row in zip(shown, rows, strict=True):
        assert_shows(each, row)
    # orjson writes NaN as null.
    assert [each.reward for each in shown[::2]] == [1.0, None, 0.0, -0.5]
    assert [each.responses for each in shown[2:6:2]] == [["first", "second"], [""]]
    assert read_file(tmp_path / "out.jsonl")[6].episode.termination_reason == (
        TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
    )
    failed = read_file(tmp_path / "out_failures.jsonl")
    assert [each.episode.error for each in failed] == ["timeout_exceeded"] * 2
    assert open_file(tmp_path / "out_failures.jsonl")[0].prompts[-1] == [("tool", "2")]
    assert format_of(tmp_path / "out_materialized_inputs.jsonl") is None
