"""A log that inspect-ai writes in its JSON format: `rllm view` shows its counts, rewards and text."""

from __future__ import annotations

from pathlib import Path

from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalPlan, EvalSample, EvalSpec, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ChatMessageUser, ContentReasoning, ContentText
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall
from opening import open_file


def make_sample(number: int, epoch: int, score: str | float) -> EvalSample:
    call = ToolCall(id="c", function="add", arguments={"a": 1, "b": 1})
    return EvalSample(
        id=number,
        epoch=epoch,
        input="1+1",
        target="2",
        messages=[
            ChatMessageUser(content="1+1", source="input"),
            ChatMessageAssistant(content="", tool_calls=[call], source="generate"),
            ChatMessageTool(content="2", tool_call_id="c", function="add"),
            ChatMessageAssistant(content=[ContentReasoning(reasoning="easy"), ContentText(text="It is 2")]),
        ],
        scores={"match": Score(value=score)},
    )


def test_view_opens_a_log_of_inspect(tmp_path: Path) -> None:
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00", task="sums", dataset=EvalDataset(), model="m", config=EvalConfig()
    )
    samples = [make_sample(1, 1, "C"), make_sample(1, 2, "I"), make_sample(2, 1, 0.25)]
    log = EvalLog(eval=spec, plan=EvalPlan(), samples=samples, status="success")
    write_eval_log(log, str(tmp_path / "log.json"), format="json")

    shown = open_file(tmp_path / "log.json")

    assert [(each.task, each.reward) for each in shown] == [("sums/1", 1.0), ("sums/1", 0.0), ("sums/2", 0.25)]
    assert shown[0].prompts == [[("user", "1+1")], [("tool", "2")]]
    assert '"name": "add"' in (shown[0].responses[0] or "")
    assert shown[0].responses[1] == "<think>\neasy\n</think>\nIt is 2"
