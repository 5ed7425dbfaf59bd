"""Traces of verifiers: ``traces.jsonl``, with an episode per line. Schema version 1, of verifiers 0.4.

A trace is a trajectory. Its messages are a graph of nodes, and each node has the tokens that it adds to its parent's. A
sampled node is a model call. All other nodes are messages of the calls below them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from math import isfinite, nan
from pathlib import Path

from rllm_core.data.messages import read_text
from rllm_core.data.types import TerminationReason
from rllm_record.interchange.drafts import (
    AFTER,
    EpisodeDraft,
    JsonData,
    StepDraft,
    TaskNumbers,
    TrajectoryDraft,
    as_json_data,
    complete_step,
    is_token_list,
    make_episodes,
    response_fields,
)
from rllm_record.interchange.formats import EpisodeFormat
from rllm_record.interchange.json_files import first_object, read_objects, write_objects
from rllm_record.interchange.lossless import (
    OURS,
    copy_after,
    copy_theirs,
    digest_of,
    draft_of,
    exact_or_shortest,
    hide_numbers,
    is_equal,
    missing_fields,
    pop_default,
    response_of,
    restore_numbers,
    shortest_floats,
)
from rllm_record.steps.rows import RecordedEpisode

THEIRS = "verifiers"
"""Key of their values in our `info` and messages."""
TRACES = "traces.jsonl"
"""Name of the file in a directory of results."""
NODE = {
    "semantic_parents": [],
    "sampled": False,
    "timestamp": 0.0,
    "token_ids": [],
    "mask": [],
    "is_content": [],
    "logprobs": [],
}
"""Fields of a node that verifiers always writes."""
TRACE = {"version": 1, "verifiers": {"version": "0"}, "is_completed": True, "ok": True, "timing": {"start": 0.0}}
"""Fields of the trace of a trajectory that comes from no file of verifiers."""
EPISODE = {"env": {"id": ""}, "is_timeout": False, "errors": []}
TASK_TYPE = "Task"
REASONS = {
    "agent_completed": TerminationReason.ENV_DONE,
    "max_turns": TerminationReason.MAX_TURNS_EXCEEDED,
    "max_input_tokens": TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
    "max_output_tokens": TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED,
    "max_total_tokens": TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED,
}
CONDITIONS = {reason: name for name, reason in reversed(REASONS.items())}
FINISHED = ("stop", "length", "tool_calls")


def is_traces(path: Path) -> bool:
    """True if the first line of a file, or of ``traces.jsonl`` in a directory, is an episode of verifiers."""
    found = first_object(_file(path))
    return "traces" in found and "task" in found


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Return the episodes of a file, or of a directory of results."""
    return read_lines(read_objects(_file(path)))


def _file(path: Path) -> Path:
    return path / TRACES if path.is_dir() else path


def read_lines(lines: Iterable[JsonData]) -> Iterator[RecordedEpisode]:
    """Yield the episode of each line."""
    return make_episodes(map(draft_of_line, lines))


def write(path: Path, episodes: Iterable[RecordedEpisode]) -> None:
    """Write episodes to a ``.jsonl`` file, or one episode to a ``.json`` file."""
    write_objects(path, lines_of(episodes))


def lines_of(episodes: Iterable[RecordedEpisode]) -> Iterator[JsonData]:
    """Yield the line of each episode. `read_lines` makes the same episodes of them."""
    numbers = TaskNumbers()
    for recorded in episodes:
        ours = draft_of(recorded)
        line = _line(ours)
        traces: list[JsonData] = line["traces"]
        carried = missing_fields(numbers.complete(draft_of_line(line)).fields, ours.fields)
        carried |= {} if traces or ours.trajectories else {"trajectories": 0}
        if carried:
            _carry(_carrier(line), {"episode": carried})
        read_back = numbers.complete(draft_of_line(line))
        numbers.count(read_back)
        for trace, theirs, each in zip(traces, read_back.trajectories, ours.trajectories, strict=bool(traces)):
            _carry(trace, missing_fields(theirs.fields, each.fields))
        for trace in traces:
            rewards = trace.get("rewards") or {}
            hidden_rewards = [key for key, value in _values(trace).items() if not isfinite(value)]
            if any(rewards[key]["score"] is not None for key in hidden_rewards):
                # A score cannot be null, but a reward can.
                _carry(trace, {"rewards": rewards})
                trace["rewards"] = rewards | dict.fromkeys(hidden_rewards)
        if hidden := hide_numbers(line):
            _carry(_carrier(line), {"numbers": hidden})
        yield line


def _carrier(line: JsonData) -> JsonData:
    """Return the object of a line whose `info` contains our values of the episode."""
    found: JsonData = line["traces"][0] if line["traces"] else line["task"]["data"]
    return found


def _ours(data: JsonData) -> JsonData:
    info = data.get("info")
    found: JsonData = info.get(OURS, {}) if isinstance(info, dict) else {}
    return found


def _carry(target: JsonData, ours: JsonData) -> None:
    """Add our values to `info` of a trace, or of the task of an episode without a trace."""
    if ours:
        info = target.setdefault("info", {})
        info[OURS] = {**info.get(OURS, {}), **ours}


def _pop_ours(data: JsonData) -> JsonData:
    found = _ours(data)
    if found:
        del data["info"][OURS]
        if not data["info"]:
            del data["info"]
    return found


def draft_of_line(line: JsonData) -> EpisodeDraft:
    """Return the draft of a line. It has the step of its run, if the run is a training."""
    line = as_json_data(line)
    restore_numbers(line, _ours(_carrier(line)).get("numbers", ()))
    environment = str((line.get("env") or {}).get("id") or "")
    task, traces = line.pop("task"), line.pop("traces")
    reason = _reason(line, traces)
    errors = [error["message"] for each in (line, *traces) for error in each.get("errors") or ()]
    if traces:
        pop_default(traces[-1], "stop_condition", CONDITIONS.get(reason))
    data = task["data"]
    ours = _ours(_carrier({"traces": traces, "task": task})).get("episode", {})
    if not traces:
        _pop_ours(data)
    name = _task_name(task, environment, traces)
    own: JsonData = {}
    if "id" in ours:
        pop_default(line, "id", ours["id"])
    elif name and str(line.get("id")).startswith(f"{name}:"):
        # Our ids are a task and a number. Theirs are random.
        own["id"] = line.pop("id")
    others = {key: value for key, value in task.items() if key != "data"}
    error = errors[-1] if errors else ""
    for key, default in {**EPISODE, "ok": not error}.items():
        pop_default(line, key, default)
    pop_default(others, "type", TASK_TYPE)
    kept = ({"line": line} if line else {}) | ({"task": others} if others else {})
    trajectories = [_trajectory(trace, task, kept if place == 0 else {}) for place, trace in enumerate(traces)]
    if not traces and ours.pop("trajectories", 1):
        # The first trajectory contains the other fields of the episode, so an episode without a trace has one too.
        trajectories = [TrajectoryDraft({"info": {THEIRS: {"episode": {**kept, "traces": 0}}}})]
    rewards = [each.fields["reward"] for each in trajectories if each.fields.get("reward") is not None]
    fields = {
        "is_correct": bool(rewards and max(rewards) > 0),
        "termination_reason": reason.value,
        "error": error,
        "step": ((line.get("run") or {}).get("work") or {}).get("step", 0),
        "task": data or None,
    }
    return EpisodeDraft(name, fields | own | ours, trajectories)


def _task_name(task: JsonData, environment: str, traces: Sequence[JsonData]) -> str:
    """Return the name of a task, its number in its environment, or a digest of its data or first messages."""
    data = task["data"]
    number = f"{environment}/{data['idx']}" if environment and data.get("idx") is not None else ""
    if name := task.get("key") or task.get("hash") or data.get("name") or number:
        return str(name)
    nodes = traces[0].get("nodes", ()) if traces else ()
    first = [node["message"] for node in takewhile(lambda node: not node.get("sampled"), nodes)]
    return digest_of(data or first) if data or first else ""


def _reason(line: JsonData, traces: Sequence[JsonData]) -> TerminationReason:
    if any(each.get("is_timeout") for each in (line, *traces)):
        return TerminationReason.TIMEOUT
    if any(each.get("errors") for each in (line, *traces)):
        return TerminationReason.ERROR
    return REASONS.get(str(traces[-1].get("stop_condition")) if traces else "", TerminationReason.UNKNOWN)


def _trajectory(trace: JsonData, task: JsonData, episode: JsonData) -> TrajectoryDraft:
    ours, nodes, agent = _pop_ours(trace), trace.pop("nodes", []), trace.pop("agent", {})
    trace |= {"rewards": ours["rewards"]} if "rewards" in ours else {}
    ours = {key: each for key, each in ours.items() if key not in ("episode", "numbers", "rewards")}
    calls, after = _steps(nodes, trace.get("calls") or (), ours.pop("nodes", {}), ours.pop("after", None))
    name = agent.pop("name", "agent")
    if not is_equal(agent, {"config": {}}):
        trace["agent"] = agent
    own: JsonData = {"own_uid": trace.pop("id")} if isinstance(trace.get("id"), str) else {}
    for key, default in {**TRACE, "task": task, "calls": _calls(calls)}.items():
        pop_default(trace, key, default)
    values = _values(trace)
    reward = sum(values.values()) if values else None
    pop_default(trace, "rewards", _rewards(reward))
    info: JsonData = {"reward_components": values} if values and "rewards" in trace else {}
    trace |= {"episode": episode} if episode else {}
    info |= ({THEIRS: trace} if trace else {}) | ({AFTER: after} if after else {})
    fields = own | {"name": name, "reward": reward, "info": info}
    return TrajectoryDraft(fields | ours, [step for _, step in calls])


def _values(trace: JsonData) -> dict[str, float]:
    """Return the weighted rewards of a trace by name. verifiers writes a score that is NaN or infinite as null."""
    scored = {key: each for key, each in (trace.get("rewards") or {}).items() if each}
    return {
        key: (nan if each["score"] is None else each["score"]) * each.get("weight", 1.0) for key, each in scored.items()
    }


def _rewards(reward: float | None) -> JsonData | None:
    return None if reward is None else {"reward": {"score": reward, "weight": 1.0}}


Calls = list[tuple[int, StepDraft]]
"""Model calls, each with the number of its node."""


def _calls(calls: Calls) -> list[JsonData]:
    """Return the calls of a trace that has no other data about them."""
    found: list[JsonData] = []
    for node, step in calls:
        fields, made = step.fields, JsonData(node=node)
        if fields["info"].get("finish_reason") in FINISHED:
            made["finish_reason"] = fields["info"]["finish_reason"]
        if fields.get("prompt_ids"):
            counts = {"prompt_tokens": len(fields["prompt_ids"]), "completion_tokens": len(fields["response_ids"])}
            made["usage"] = counts
        found.append(made)
    return found


def _steps(
    nodes: Sequence[JsonData], calls: Iterable[JsonData], carried: JsonData, after: list[JsonData] | None
) -> tuple[Calls, list[JsonData]]:
    """Return the model calls of a graph, and the messages that no call follows.

    Args:
        nodes: nodes of the graph.
        calls: other data about the calls.
        carried: number of a node -> our fields and messages of its step.
        after: our messages after the last call. None if they are in the graph.
    """
    is_chain = all(node.get("parent") == (number - 1 if number else None) for number, node in enumerate(nodes))
    reasons = {call["node"]: call["finish_reason"] for call in calls if call.get("finish_reason") and "node" in call}

    def message_of(number: int) -> JsonData:
        return _message(nodes[number], {} if is_chain else {"index": number, "parent": nodes[number].get("parent")})

    found: Calls = []
    used: set[int] = set()
    for number, node in enumerate(nodes):
        if not node.get("sampled"):
            continue
        path = _path(nodes, number)
        earlier = [index for index, place in enumerate(path) if nodes[place].get("sampled")]
        fresh = path[earlier[-1] + 1 :] if earlier else path
        before = list(chain.from_iterable(nodes[place].get("token_ids", []) for place in path))
        fields = _call_fields(node, before, {} if is_chain else {"index": number, "parent": node.get("parent")})
        if number in reasons:
            fields["info"]["finish_reason"] = reasons[number]
        ours = carried.get(str(number), {})
        messages = ours.get("messages", [message_of(place) for place in fresh])
        found.append((number, StepDraft(fields | ours.get("fields", {}), messages)))
        used.update(path, [number])
    rest = [message_of(number) for number in range(len(nodes)) if number not in used]
    return found, rest if after is None else after


def _path(nodes: Sequence[JsonData], number: int) -> list[int]:
    """Return the numbers of a node's ancestors, from the root."""
    path: list[int] = []
    parent = nodes[number].get("parent")
    while parent is not None:
        if parent in path or not 0 <= parent < len(nodes):
            raise ValueError(f"node {number} has an invalid parent")
        path.append(parent)
        parent = nodes[parent].get("parent")
    return path[::-1]


def _other_fields(node: JsonData, *, is_sampled: bool) -> JsonData:
    kept = {key: value for key, value in node.items() if key not in ("parent", "message")}
    for key, default in NODE.items():
        pop_default(kept, key, is_sampled if key == "sampled" else default)
    return kept


def _message(node: JsonData, place: JsonData) -> JsonData:
    message = as_json_data(node["message"])
    kept = _other_fields(node, is_sampled=False) | place
    return _from_theirs(message) | ({THEIRS: kept} if kept else {})


def _call_fields(node: JsonData, before: list[int], place: JsonData) -> JsonData:
    """Return the fields of a sampled node's step.

    Args:
        node: the node.
        before: tokens of its ancestors.
        place: number and parent of the node. Empty if they follow from the order of the nodes.
    """
    kept = _other_fields(node, is_sampled=True) | place
    response = _from_theirs(as_json_data(node["message"]))
    fields = response_fields(response)
    ids, mask, logprobs = node.get("token_ids", []), node.get("mask", []), node.get("logprobs", [])
    start = mask.index(True) if True in mask else len(mask)
    prompt, sampled = before + ids[:start], ids[start:]
    is_regular = len(mask) == len(ids) and all(mask[start:]) and len(logprobs) in (0, len(sampled))
    if is_regular and is_token_list(prompt + sampled) and (prompt or not sampled):
        known = shortest_floats(logprobs) if logprobs else None
        fields |= {"prompt_ids": prompt, "response_ids": sampled, "logprobs": known}
        for key in ("token_ids", "mask", "logprobs"):
            kept.pop(key, None)
        if known is not None and known != logprobs:
            kept["logprobs"] = logprobs
    if kept:
        fields["info"][THEIRS] = kept
    return fields


def _from_theirs(message: JsonData) -> JsonData:
    """Convert the tool calls of a message to OpenAI's chat API."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = {"name": call.pop("name"), "arguments": call.pop("arguments")}
        calls.append({"type": "function", **call, "function": function})
    return message | {"tool_calls": calls}


def _to_theirs(message: JsonData) -> JsonData:
    """Return a message with verifiers' fields. The caller carries messages that lose something."""
    role, content = message.get("role"), message.get("content")
    made: JsonData = {"role": role if role in ("system", "user", "assistant", "tool") else "user"}
    if role == "assistant":
        text = read_text(message) if isinstance(content, list) else content
        made |= {"content": text} if isinstance(text, str) else {}
        made |= {key: message[key] for key in ("reasoning_content", "provider_state") if message.get(key) is not None}
        if isinstance(message.get("tool_calls"), list):
            made["tool_calls"] = [_call_of(call) for call in message["tool_calls"]]
        return made
    made["content"] = content if isinstance(content, str) else [_part_of(part) for part in content or ()]
    if role == "tool":
        made["tool_call_id"] = str(message.get("tool_call_id") or "")
        made |= {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    return made


def _part_of(part: JsonData) -> JsonData:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url") if part.get("type") == "image_url" else None
    if isinstance(image, dict) and isinstance(image.get("url"), str):
        return {"type": "image_url", "image_url": {"url": image["url"]}}
    return {"type": "text", "text": json.dumps(part, ensure_ascii=False)}


def _call_of(call: JsonData) -> JsonData:
    function = call.get("function") or {}
    others = {key: value for key, value in call.items() if key in ("id", "type", "namespace")}
    named = {"name": str(function.get("name", "")), "arguments": str(function.get("arguments", ""))}
    return {"id": "", "type": "function"} | others | named


def _line(ours: EpisodeDraft) -> JsonData:
    """Return the line of an episode, with our values that a graph of messages cannot contain."""
    first = copy_theirs(ours.trajectories[0].fields["info"], THEIRS) if ours.trajectories else {}
    kept = first.get("episode", {})
    task = {"type": TASK_TYPE, **kept.get("task", {}), "data": as_json_data(ours.fields["task"] or {})}
    line = {
        "id": ours.fields["id"],
        **EPISODE,
        "ok": not ours.fields["error"],
        **kept.get("line", {}),
        "task": task,
        "traces": [],
    }
    if "traces" not in kept:
        line["traces"] = [_trace(each, task) for each in ours.trajectories]
    condition = CONDITIONS.get(TerminationReason(ours.fields["termination_reason"]))
    if condition and line["traces"]:
        line["traces"][-1].setdefault("stop_condition", condition)
    return line


def _trace(draft: TrajectoryDraft, task: JsonData) -> JsonData:
    fields, kept = draft.fields, copy_theirs(draft.fields["info"], THEIRS)
    after, agent = copy_after(fields), kept.pop("agent", {"config": {}})
    kept.pop("episode", None)
    nodes = _Nodes()
    numbers = [nodes.add_call(step) for step in draft.steps]
    for message in after:
        nodes.add_message(message)
    trace = {**TRACE, "id": fields["own_uid"], "task": as_json_data(task), **kept, "nodes": nodes.in_order()}
    trace["agent"] = {**agent, "name": fields["name"]}
    trace.setdefault("calls", _calls([*zip(numbers, draft.steps, strict=True)]))
    values = _values(trace)
    if fields["reward"] is not None and (not values or not is_equal(fields["reward"], float(sum(values.values())))):
        # A reward that was changed replaces theirs.
        trace["rewards"] = _rewards(fields["reward"])
    calls, rest = _steps(trace["nodes"], trace["calls"], {}, None)
    carried: JsonData = {}
    for (number, theirs), step in zip(calls, draft.steps, strict=True):
        found: JsonData = {"fields": missing_fields(complete_step(theirs), step.fields)}
        found |= {} if is_equal(theirs.messages, step.messages) else {"messages": step.messages}
        carried |= {str(number): found} if found["fields"] or "messages" in found else {}
    _carry(trace, ({"nodes": carried} if carried else {}) | ({} if is_equal(rest, after) else {"after": after}))
    return trace


class _Nodes:
    """The graph of a trajectory's messages. A node without a recorded place follows the previous node."""

    def __init__(self) -> None:
        self._nodes: dict[int, JsonData] = {}
        self._tokens: dict[int | None, list[int]] = {None: []}
        self._last: int | None = None

    def in_order(self) -> list[JsonData]:
        return [self._nodes[number] for number in sorted(self._nodes)]

    def add_message(self, message: JsonData) -> None:
        kept = copy_theirs(message, THEIRS)
        made = _to_theirs({key: value for key, value in message.items() if key != THEIRS})
        self._add(made, kept, is_sampled=False)

    def add_call(self, step: StepDraft) -> int:
        """Add the messages and the response of a step, and return the number of the response's node."""
        fields, kept = step.fields, copy_theirs(step.fields["info"], THEIRS)
        prompt, sampled = fields["prompt_ids"], fields["response_ids"]
        if prompt and prompt[: len(self._tokens[self._last])] != self._tokens[self._last]:
            self._last = None
        for message in step.messages:
            self.add_message(message)
        parent = kept.get("parent", self._last)
        before = len(self._tokens.get(parent, ()))
        exact = kept.pop("logprobs", None) if "token_ids" not in kept else kept.get("logprobs")
        if prompt:
            logprobs = exact_or_shortest(fields["logprobs"], exact)
            kept["token_ids"] = prompt[before:] + sampled
            kept["mask"] = [False] * len(prompt[before:]) + [True] * len(sampled)
            kept["logprobs"] = [] if logprobs is None or None in logprobs else logprobs
        return self._add(_to_theirs(response_of(fields)), kept, is_sampled=True)

    def _add(self, message: JsonData, kept: JsonData, *, is_sampled: bool) -> int:
        number = kept.pop("index", max(self._nodes, default=-1) + 1)
        parent = kept.pop("parent", self._last)
        if number not in self._nodes or is_sampled:
            node = {"message": message, **NODE, "sampled": is_sampled, **kept}
            self._nodes[number] = node if parent is None else {"parent": parent, **node}
            self._tokens[number] = self._tokens.get(parent, []) + node["token_ids"]
        self._last = number
        return int(number)


FORMAT = EpisodeFormat(name="verifiers", title="traces of verifiers", recognizes=is_traces, read=read, write=write)
