"""ATIF, the trajectory format of Harbor (RFC 0001): versions 1.0 to 1.8 are read, 1.8 is written.

A document is an episode. Its root, and each of its subagents, is a trajectory. A step of ATIF with source ``agent`` is
a model call. All other steps, and the results of tools, are messages of the next call. Steps that are copied context,
or that no model wrote, are messages too.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rllm_core.data.types import TerminationReason
from rllm_core.notices import say
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
    first_messages,
    hide_numbers,
    is_equal,
    missing_fields,
    pop_default,
    pop_ours,
    pop_value,
    response_of,
    restore_numbers,
    shortest_floats,
)
from rllm_record.steps.rows import RecordedEpisode

THEIRS = "atif"
"""Key of their values in our `info` and messages."""
VERSION = "ATIF-v1.8"
TRAJECTORY = "agent/trajectory.json"
"""Path of the document in the directory of a trial."""
AGENT = {"version": "0"}
"""Other fields of the agent of an episode that comes from no file of ATIF."""
PLACEHOLDER = {"source": "system", "message": "", "extra": {OURS: {"placeholder": True}}}
"""The step of a trajectory without any, because ATIF requires one."""
IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
ROLES = {"agent": "assistant"}
SOURCES = {"assistant": "agent", "system": "system"}


def is_atif(path: Path) -> bool:
    """True if the first document of a file, or of the directory of a trial or job of Harbor, has a version of ATIF."""
    file = next(_files(path), None)
    return file is not None and str(first_object(file).get("schema_version", "")).startswith("ATIF")


def read(path: Path) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a ``.json`` or ``.jsonl`` file, or of a trial or a job of Harbor, one for each document.

    In a directory, rewards, errors and the task's name are in the trial's ``result.json``. A line prints the number of
    trials without a document, which are skipped.
    """
    documents = ((_continue(document, file), file) for file in _files(path) for document in read_objects(file))
    yield from make_episodes(_draft(document, _trial(file)) for document, file in documents)
    trials = {each.parent for name in ("result.json", "config.json") for each in path.glob(f"*/{name}")}
    skipped = sorted(trial.name for trial in trials if not (trial / TRAJECTORY).is_file())
    if skipped:
        say(f"{path}: {len(skipped)} trials without {TRAJECTORY} were skipped, for example {skipped[0]}.")


def _continue(document: JsonData, file: Path) -> JsonData:
    """Add the steps of the files ``trajectory.cont-N.json`` next to a ``trajectory.json``, without copied context.

    Raises:
        ValueError: a file's N is no number.
    """
    files = [*file.parent.glob("trajectory.cont-*.json")] if file.name == "trajectory.json" else []
    reference = document.get("continued_trajectory_ref")
    if files:
        document.pop("continued_trajectory_ref", None)
    elif reference:
        say(f"{file}: the file of later steps, {reference}, is not read. Put it next to a trajectory.json.")
    for each in sorted(files, key=lambda found: int(found.stem.rpartition("-")[2])):
        (more,) = read_objects(each)
        steps = more.pop("steps")
        document["steps"] = [*document["steps"], *(step for step in steps if not step.get("is_copied_context"))]
        if copied := [step for step in steps if step.get("is_copied_context")]:
            more["copied_steps"] = copied
        if inner := more.pop("subagent_trajectories", None):
            document["subagent_trajectories"] = [*(document.get("subagent_trajectories") or ()), *inner]
        extra = document.get("extra") or {}
        document["extra"] = {**extra, "continuations": [*extra.get("continuations", ()), more]}
    return document


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted([*path.glob(TRAJECTORY), *path.glob(f"*/{TRAJECTORY}")])
    else:
        yield path


def _trial(file: Path) -> JsonData:
    """Return the result of the trial that a file belongs to. Empty if it belongs to none."""
    result = file.parents[1] / "result.json" if file.match(TRAJECTORY) else file / "none"
    return dict(first_object(result)) if result.is_file() else {}


def read_documents(documents: Iterable[JsonData]) -> Iterator[RecordedEpisode]:
    """Yield the episode of each document."""
    return make_episodes(_draft(document, {}) for document in documents)


def write(path: Path, episodes: Iterable[RecordedEpisode]) -> None:
    """Write episodes to a ``.jsonl`` file, or one episode to a ``.json`` file."""
    write_objects(path, documents_of(episodes))


def documents_of(episodes: Iterable[RecordedEpisode]) -> Iterator[JsonData]:
    """Yield the document of each episode. `read_documents` makes the same episodes of them."""
    numbers = TaskNumbers()
    for recorded in episodes:
        ours = draft_of(recorded)
        documents = [_document(each, place) for place, each in enumerate(ours.trajectories)]
        roots = documents or [_document(TrajectoryDraft({"name": "", "info": {}}), 0)]
        for place, (document, parent) in enumerate(documents[1:], 1):
            above = roots[parent if parent < place else 0][0]
            above["subagent_trajectories"] = [*(above.get("subagent_trajectories") or ()), document]
        root = roots[0][0]
        carried = missing_fields(numbers.complete(_draft(root, {})).fields, ours.fields)
        carried |= {} if documents else {"trajectories": 0}
        _carry(root, {"episode": carried} if carried else {})
        read_back = numbers.complete(_draft(root, {}))
        numbers.count(read_back)
        for (document, _), theirs, each in zip(documents, read_back.trajectories, ours.trajectories, strict=True):
            _carry(document, missing_fields(theirs.fields, each.fields))
        if hidden := hide_numbers(root):
            _carry(root, {"numbers": hidden})
        yield root


def _carry(target: JsonData, ours: JsonData) -> None:
    """Add our values to the field for extra data."""
    if ours:
        extra = target.get("extra") or {}
        target["extra"] = {**extra, OURS: {**extra.get(OURS, {}), **ours}}


def _draft(document: JsonData, trial: JsonData) -> EpisodeDraft:
    document = as_json_data(document)
    restore_numbers(document, ((document.get("extra") or {}).get(OURS) or {}).get("numbers", ()))
    name = str(trial.get("task_name") or document.get("session_id") or document.get("trajectory_id") or "")
    trajectories: list[TrajectoryDraft] = []
    fields = _add_trajectories(document, 0, trajectories)
    if rewards := (trial.get("verifier_result") or {}).get("rewards"):
        _set_reward(trajectories[0].fields, rewards)
        fields = {"is_correct": trajectories[0].fields["reward"] > 0} | fields
    if failure := trial.get("exception_info"):
        error = f"{failure.get('exception_type')}: {failure.get('exception_message')}"
        fields = {"error": error, "termination_reason": TerminationReason.ERROR.value} | fields
    if not name and (first := first_messages(trajectories)):
        name = digest_of(first)
    if fields.pop("trajectories", None) == 0:
        trajectories = []
    return EpisodeDraft(name, fields, trajectories)


def _set_reward(fields: JsonData, rewards: dict[str, float]) -> None:
    """Set the reward that a trial's verifier gave: its value ``reward``, or the mean of its values."""
    values = {name: float(value) for name, value in rewards.items()}
    fields.setdefault("reward", values.get("reward", sum(values.values()) / len(values)))
    if len(values) > 1:
        fields["info"].setdefault("reward_components", values)


def _add_trajectories(document: JsonData, parent: int, found: list[TrajectoryDraft]) -> JsonData:
    """Add a document and its subagents. Return our fields of the episode."""
    place = len(found)
    ours, steps, agent = pop_ours(document), document.pop("steps"), document.pop("agent")
    ours.pop("numbers", None)
    episode: JsonData = ours.pop("episode", {})
    subagents = document.pop("subagent_trajectories") if document.get("subagent_trajectories") else []
    name = agent.pop("name")
    if not is_equal(agent, AGENT):
        document["agent"] = agent
    pop_default(document, "schema_version", VERSION)
    if place:
        pop_default(document, "trajectory_id", str(place))
    calls, after = _calls(steps)
    document |= {"parent": parent} if parent else {}
    info: JsonData = ({THEIRS: document} if document else {}) | ({AFTER: after} if after else {})
    found.append(TrajectoryDraft({"name": name, "info": info, **ours}, calls))
    for each in subagents:
        _add_trajectories(each, place, found)
    return episode


def _calls(steps: Iterable[JsonData]) -> tuple[list[StepDraft], list[JsonData]]:
    """Return the model calls, and the messages after the last of them."""
    calls: list[StepDraft] = []
    messages: list[JsonData] = []
    for step in steps:
        step.pop("step_id")
        if is_equal(step, PLACEHOLDER):
            continue
        observation = step.get("observation")
        results = step.pop("observation")["results"] if observation and observation["results"] else []
        is_copied, count = step.get("is_copied_context"), step.get("llm_call_count")
        if step["source"] == "agent" and not is_copied and count != 0:
            calls.append(StepDraft(_call_fields(step), messages))
            messages = []
        else:
            messages.append(_message(step))
        messages += [_result(each) for each in results]
    return calls, messages


def _call_fields(step: JsonData) -> JsonData:
    ours = pop_ours(step)
    fields = response_fields(_response(step)) | _pop_tokens(step)
    if step:
        fields["info"][THEIRS] = step
    return fields | ours


def _response(step: JsonData) -> JsonData:
    """Remove the parts of an agent's message, and return it."""
    step.pop("source")
    response: JsonData = {"role": "assistant", "content": _content(step.pop("message"))}
    if (reasoning := pop_value(step, "reasoning_content")) is not None:
        response["reasoning_content"] = reasoning
    if step.get("tool_calls"):
        response["tool_calls"] = [_tool_call(call) for call in step.pop("tool_calls")]
    return response


def _tool_call(call: JsonData) -> JsonData:
    arguments = json.dumps(call.pop("arguments"), ensure_ascii=False)
    function = {"name": call.pop("function_name"), "arguments": arguments}
    found = {"id": call.pop("tool_call_id"), "type": "function", "function": function}
    return found | ({THEIRS: call} if call else {})


def _pop_tokens(step: JsonData) -> JsonData:
    """Remove token ids and log-probs. They stay if they cannot be used as a model call."""
    metrics = step.get("metrics")
    if not metrics:
        return {}
    prompt, response = metrics.get("prompt_token_ids"), metrics.get("completion_token_ids")
    logprobs = metrics.get("logprobs")
    if not (prompt and is_token_list(prompt) and is_token_list(response)):
        return {}
    if logprobs is not None and (len(logprobs) != len(response) or any(value != value for value in logprobs)):
        return {}
    del metrics["prompt_token_ids"], metrics["completion_token_ids"]
    known = shortest_floats(metrics.pop("logprobs")) if logprobs else None
    if known is not None and known != logprobs:
        step["logprobs"] = logprobs
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(response)}
    if not is_equal(counts, {key: metrics.get(key) for key in counts}):
        step["counts"] = {key: metrics.pop(key) for key in counts if key in metrics}
    else:
        for key in counts:
            del metrics[key]
    if not metrics:
        del step["metrics"]
    return {"prompt_ids": prompt, "response_ids": response, "logprobs": known}


def _message(step: JsonData) -> JsonData:
    ours = pop_ours(step)
    if "message" in ours:
        return dict(ours["message"])
    if step["source"] == "agent":
        if step.get("llm_call_count") != 0 and step.get("is_copied_context") is True:
            del step["is_copied_context"]
        found = _response(step)
    else:
        found = {"role": step.pop("source"), "content": _content(step.pop("message"))}
    return found | ({THEIRS: step} if step else {})


def _result(result: JsonData) -> JsonData:
    ours = pop_ours(result)
    if "message" in ours:
        return dict(ours["message"])
    found: JsonData = {"role": "tool"}
    if (content := pop_value(result, "content")) is not None:
        found["content"] = _content(content)
    if (call := pop_value(result, "source_call_id")) is not None:
        found["tool_call_id"] = call
    return found | ({THEIRS: result} if result else {})


def _content(content: Any) -> Any:
    return [_part(part) for part in content] if isinstance(content, list) else content


def _part(part: JsonData) -> JsonData:
    source = part.get("source")
    if part.get("type") != "image" or not source or source.keys() != {"media_type", "path"} or len(part) > 2:
        return part
    return {"type": "image_url", "image_url": {"url": source["path"]}, "media_type": source["media_type"]}


def _document(draft: TrajectoryDraft, place: int) -> tuple[JsonData, int]:
    """Return the document of a trajectory, and the place of the document that contains it."""
    kept = copy_theirs(draft.fields["info"], THEIRS)
    parent = kept.pop("parent", 0)
    document = {"schema_version": VERSION, **({"trajectory_id": str(place)} if place else {}), **kept}
    document["agent"] = {"name": draft.fields["name"], **kept.get("agent", AGENT)}
    steps: list[JsonData] = []
    for call in draft.steps:
        _add_messages(steps, call.messages)
        steps.append(_call(call))
    _add_messages(steps, copy_after(draft.fields))
    steps = steps or [as_json_data(PLACEHOLDER)]
    return document | {"steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)]}, parent


def _add_messages(steps: list[JsonData], messages: Iterable[JsonData]) -> None:
    for message in messages:
        if message.get("role") == "tool" and steps:
            made = _result_of(message, steps[-1])
            steps[-1].setdefault("observation", {"results": []})["results"].append(made)
        else:
            steps.append(_step_of(message))


def _step_of(message: JsonData) -> JsonData:
    source = SOURCES.get(str(message.get("role")), "user")
    step: JsonData = {"source": source, "message": _parts(message.get("content"))}
    kept = message.get(THEIRS) or {}
    if source == "agent":
        step |= _agent_parts(message) | ({} if kept.get("llm_call_count") == 0 else {"is_copied_context": True})
    step |= as_json_data(kept)
    if not is_equal(_message(as_json_data(step)), message):
        _carry(step, {"message": message})
    return step


def _result_of(message: JsonData, step: JsonData) -> JsonData:
    calls = {call["tool_call_id"] for call in step.get("tool_calls") or ()}
    made: JsonData = as_json_data(message.get(THEIRS) or {})
    if message.get("content") is not None:
        made["content"] = _parts(message["content"])
    if message.get("tool_call_id") in calls:
        made["source_call_id"] = message["tool_call_id"]
    if not is_equal(_result(as_json_data(made)), message):
        _carry(made, {"message": message})
    return made


def _call(draft: StepDraft) -> JsonData:
    fields, kept = draft.fields, copy_theirs(draft.fields["info"], THEIRS)
    exact, counts, metrics = kept.pop("logprobs", None), kept.pop("counts", None), kept.get("metrics")
    response = response_of(fields)
    step = {"source": "agent", "message": _parts(response.get("content")), **_agent_parts(response), **kept}
    measured: JsonData = {}
    if fields["prompt_ids"]:
        prompt, sampled = fields["prompt_ids"], fields["response_ids"]
        usual = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)}
        measured = {
            **(usual if counts is None else counts),
            "prompt_token_ids": prompt,
            "completion_token_ids": sampled,
        }
        logprobs = exact_or_shortest(fields["logprobs"], exact)
        measured |= {} if logprobs is None or None in logprobs else {"logprobs": logprobs}
    if measured or metrics:
        step["metrics"] = {**measured, **(metrics or {})}
    _carry(step, missing_fields(complete_step(StepDraft(_call_fields(as_json_data(step)))), fields))
    return step


def _agent_parts(message: Mapping[str, Any]) -> JsonData:
    parts: JsonData = {}
    if message.get("reasoning_content") is not None:
        parts["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        parts["tool_calls"] = [_call_of(call) for call in message["tool_calls"]]
    return parts


def _call_of(call: Mapping[str, Any]) -> JsonData:
    function = call.get("function") or {}
    text = function.get("arguments", "")
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError):
        arguments = None
    made: JsonData = {"tool_call_id": str(call.get("id", "")), "function_name": str(function.get("name", ""))}
    made["arguments"] = arguments if isinstance(arguments, dict) else {"text": text}
    return {**made, **call.get(THEIRS, {})}


def _parts(content: Any) -> Any:
    """Return content for ATIF. A part that it cannot contain becomes JSON in a text."""
    return [_part_of(part) for part in content] if isinstance(content, list) else str(content or "")


def _part_of(part: JsonData) -> JsonData:
    kind = part.get("type")
    if (kind == "text" and isinstance(part.get("text"), str)) or (kind in ("image", "audio") and "source" in part):
        return part if kind != "text" else {"type": "text", "text": part["text"]}
    url = (part.get("image_url") or {}).get("url", "") if kind == "image_url" else ""
    media = part.get("media_type") or mimetypes.guess_type(url)[0]
    if url and media in IMAGES and not url.startswith("data:"):
        return {"type": "image", "source": {"media_type": media, "path": url}}
    return {"type": "text", "text": json.dumps(part, ensure_ascii=False)}


FORMAT = EpisodeFormat(name="atif", title="trajectories of Harbor (ATIF)", recognizes=is_atif, read=read, write=write)
