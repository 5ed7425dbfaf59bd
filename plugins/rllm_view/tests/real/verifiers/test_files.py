"""Files that verifiers itself writes: `rllm view` opens them, and they are equal after they were episodes of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st
from opening import open_file
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, Episode, EvalRunInfo, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, Error, ModelCall, Reward, Trace, TraceTask, WireTrace
from verifiers.v1.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    SystemMessage,
    TextContentPart,
    Tool,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from verifiers.v1.utils.trace_store import TRACES_FILE, read_episodes, write_episode

from rllm_record.interchange.formats import read_file, write_file
from rllm_record.interchange.programs import verifiers_traces

texts = st.text(max_size=6)
ids = st.lists(st.integers(0, 2**33), max_size=3)
floats = st.floats(-9, 0)
parts = st.one_of(
    st.builds(TextContentPart, text=texts),
    st.builds(ImageUrlContentPart, image_url=st.builds(ImageUrlSource, url=texts)),
)
contents = texts | st.lists(parts, max_size=2)
calls = st.builds(
    ToolCall,
    id=texts,
    type=st.sampled_from(["function", "custom"]),
    name=texts,
    namespace=st.none() | texts,
    arguments=texts,
)
prompts = st.one_of(
    st.builds(SystemMessage, content=contents),
    st.builds(UserMessage, content=contents),
    st.builds(ToolMessage, tool_call_id=texts, content=contents, name=st.none() | texts),
)
answers = st.builds(
    AssistantMessage,
    content=st.none() | texts,
    reasoning_content=st.none() | texts,
    tool_calls=st.none() | st.lists(calls, max_size=2),
    provider_state=st.none() | st.just([{"type": "reasoning", "encrypted_content": "x"}]),
)
errors = st.builds(Error, type=texts, message=texts, traceback=st.none() | texts)
rewards = st.none() | st.builds(Reward, score=st.floats(-1, 1), weight=st.sampled_from([1.0, 0.5]))
tasks = st.builds(
    lambda number, prompt, key: TraceTask(
        type="Sum", data=WireTaskData(idx=number, prompt=prompt, answer="4"), key=key, hash=key
    ),
    st.integers(0, 3),
    st.none() | texts,
    st.none() | texts,
)


@st.composite
def nodes(draw: Any, parent: int | None) -> MessageNode:
    if draw(st.booleans()):
        tokens = draw(ids)
        return MessageNode(parent=parent, message=draw(prompts | answers), token_ids=tokens, mask=[False] * len(tokens))
    before, sampled = draw(ids), draw(ids)
    known = draw(st.booleans())
    return MessageNode(
        parent=parent,
        message=draw(answers),
        sampled=True,
        token_ids=before + sampled,
        mask=[False] * len(before) + [True] * len(sampled),
        logprobs=draw(st.lists(floats, min_size=len(sampled), max_size=len(sampled))) if known else [],
        advantages=draw(st.none() | st.just([0.5] * len(sampled))),
    )


@st.composite
def traces(draw: Any, task: Any) -> WireTrace:
    graph: list[MessageNode] = []
    is_chain = draw(st.booleans())
    for number in range(draw(st.integers(0, 5))):
        parents = [number - 1] if is_chain and number else [None, *range(number)]
        graph.append(draw(nodes(draw(st.sampled_from(parents)))))
    return Trace[WireTaskData, State, WireAgentConfig](
        task=task,
        agent=AgentInfo(config=WireAgentConfig(model=draw(st.none() | texts)), name=draw(texts)),
        nodes=graph,
        tools=draw(st.just([]) | st.just([Tool(name="add", parameters={"type": "object"})])),
        calls=[
            ModelCall(node=number, finish_reason=draw(st.sampled_from([None, "stop", "length"])), model="m")
            for number, node in enumerate(graph)
            if node.sampled
        ],
        rewards=draw(st.dictionaries(texts, rewards, max_size=2)),
        metrics=draw(st.dictionaries(texts, st.none() | floats, max_size=2)),
        info=draw(st.dictionaries(texts, texts, max_size=2)),
        stop_condition=draw(st.sampled_from([None, "agent_completed", "max_turns", "harness_timeout"])),
        is_completed=draw(st.booleans()),
        ok=draw(st.booleans()),
        errors=draw(st.lists(errors, max_size=1)),
        extra_usage=draw(st.just([]) | st.just([Usage(prompt_tokens=1, completion_tokens=2, cost=0.5)])),
    )


@st.composite
def episodes(draw: Any) -> Episode:
    task = draw(tasks)
    work = TrainWorkInfo(step=3, policy=PolicySpan(start=1, end=2))
    return Episode[WireTaskData, State, WireAgentConfig](
        env=EnvInfo(id=draw(texts)),
        task=task,
        traces=draw(st.lists(traces(task), max_size=2)),
        ok=draw(st.booleans()),
        errors=draw(st.lists(errors, max_size=1)),
        group=draw(st.none() | st.builds(GroupInfo, id=texts)),
        run=draw(st.sampled_from([None, EvalRunInfo(id="e"), TrainRunInfo(id="t", work=work)])),
    )


def write(directory: Path, made: list[Episode]) -> Path:
    """Write results as `eval` of verifiers does, and return the file."""
    directory.mkdir(exist_ok=True)
    (directory / TRACES_FILE).write_text("")
    for each in made:
        write_episode(directory, each)
    return directory / TRACES_FILE


@given(made=st.lists(episodes(), min_size=1, max_size=2))
def test_lines_are_equal_after_reading_and_writing(made: list[Episode], tmp_path_factory: Any) -> None:
    directory = tmp_path_factory.mktemp("results")
    theirs = [json.loads(line) for line in write(directory, made).read_text().split("\n") if line]
    again = [*verifiers_traces.lines_of(verifiers_traces.read_lines(theirs))]
    assert again == theirs
    (directory / TRACES_FILE).write_text("".join(f"{json.dumps(each)}\n" for each in again))
    loaded = read_episodes(directory, WireTrace)
    assert [each.model_dump(mode="json", exclude_none=True) for each in loaded] == [
        json.loads(each.model_dump_json(exclude_none=True)) for each in made
    ]


def conversation() -> Episode:
    """Two turns with a tool, and a second branch from the first answer."""
    task = TraceTask(type="Sum", data=WireTaskData(idx=1, prompt="2+2"), key="sum-1", hash="h")
    call = ToolCall(id="c", name="add", arguments='{"a": 2, "b": 2}')

    def response(parent: int, message: AssistantMessage, *tokens: int) -> MessageNode:
        mask = [False] + [True] * (len(tokens) - 1)
        logprobs = [-0.25] * (len(tokens) - 1)
        return MessageNode(
            parent=parent, message=message, sampled=True, token_ids=[*tokens], mask=mask, logprobs=logprobs
        )

    def message_node(parent: int | None, message: Any, *tokens: int) -> MessageNode:
        return MessageNode(parent=parent, message=message, token_ids=[*tokens], mask=[False] * len(tokens))

    trace = Trace[WireTaskData, State, WireAgentConfig](
        task=task,
        agent=AgentInfo(config=WireAgentConfig()),
        nodes=[
            message_node(None, UserMessage(content="2+2"), 1, 2),
            response(0, AssistantMessage(content=None, tool_calls=[call]), 3, 4, 5),
            message_node(1, ToolMessage(tool_call_id="c", content="4"), 6),
            response(2, AssistantMessage(content="It is 4"), 7, 8),
            message_node(1, UserMessage(content="no tool, please"), 9),
            response(4, AssistantMessage(content="4"), 10, 11),
        ],
        rewards={"right": Reward(score=1.0), "short": Reward(score=0.5, weight=0.5)},
        stop_condition="agent_completed",
        is_completed=True,
        ok=True,
    )
    return Episode[WireTaskData, State, WireAgentConfig](env=EnvInfo(id="sum"), task=task, traces=[trace], ok=True)


def test_view_opens_a_file_of_verifiers(tmp_path: Path) -> None:
    file = write(tmp_path / "results", [conversation(), conversation()])
    for path in (file, file.parent):
        first, second = open_file(path)
        assert (first.task, first.reward, second.reward) == ("sum-1", 1.25, 1.25)
        assert first.prompts == [[("user", "2+2")], [("tool", "4")], [("user", "no tool, please")]]
        assert first.responses[1:] == ["It is 4", "4"]
        assert '"name": "add"' in (first.responses[0] or "")


def test_view_opens_the_layout_of_prime_rl(tmp_path: Path) -> None:
    file = write(tmp_path / "results", [conversation()])
    for subset in ("all", "effective"):
        directory = tmp_path / "run/rollouts/step_3/train" / subset
        directory.mkdir(parents=True)
        (directory / TRACES_FILE).write_text(json.dumps(conversation().to_record()) + "\n")
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 3}\n')
    (shown,) = open_file(tmp_path / "run/rollouts/step_3/train/all/traces.jsonl")
    assert [shown] == open_file(file)
    assert len(open_file(tmp_path / "run")) == 2


def test_tokens_of_branches_are_training_samples(tmp_path: Path) -> None:
    made = conversation()
    (episode,) = read_file(write(tmp_path / "results", [made]))
    steps = episode.trajectories[0].trajectory.steps
    samples = [[*step.prompt_ids.tolist(), *step.response_ids.tolist()] for step in steps]
    assert samples[1:] == [branch.token_ids for branch in made.traces[0].branches]
    assert [step.logprobs.tolist() for step in steps] == [[-0.25, -0.25], [-0.25], [-0.25]]


def test_other_formats_carry_everything(tmp_path: Path) -> None:
    file = write(tmp_path / "results", [conversation()])
    write_file(tmp_path / "one.json", read_file(file), "atif")
    write_file(tmp_path / "again.jsonl", read_file(tmp_path / "one.json"), "verifiers")
    assert json.loads((tmp_path / "again.jsonl").read_text()) == json.loads(file.read_text())
