"""Write the sessions of a store as episode files, which `rllm rescore` and `rllm train --stored` read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from rllm_core.contracts.reward import Rollout
from rllm_core.data.messages import Response, ToolCall
from rllm_core.data.types import Episode, Step, TerminationReason
from rllm_core.errors import ConfigError
from rllm_gateway.calls import CallReader, CallRow, SessionRow, SessionSummary, StoredSession
from rllm_gateway.episodes import Returned, pay, traced
from rllm_gateway.link import (
    BATCH,
    LABEL,
    TASK,
    TASK_ID,
    TEMPERATURE,
    TOKENIZER,
    VALIDATION,
    SessionTrace,
    traced_call,
)
from rllm_gateway.listing import Selection, sessions_of
from rllm_record.steps import PlayedEpisode, PlayedTrajectory, Sampler, StepFiles

ROLLOUT = "attempt"
"""Key of `Step.info`. Its value is the `Rollout` that rewards receive, as JSON data. Only the step with the last
response of an episode has it."""


def episode_of(stored: StoredSession, uid: str) -> Episode:
    """Return the episode of a session.

    Args:
        stored: the session. Calls that were not delivered are dropped, as in a run.
        uid: id of the episode.

    Raises:
        StoreError: a call is missing.
    """
    rewards = {row.role: row.value for row in stored.rewards}
    ending: Any = "closed" if stored.end is None else stored.end.ending
    calls = tuple(traced_call(row, row.delivered) for row in stored.calls)
    trace = SessionTrace(id=stored.session.id, calls=calls, rewards=rewards, counters={}, ending=ending)
    steps = {row.id: _step_of(stored, row) for row in stored.calls}
    made = traced(trace, steps, uid)
    episode = Episode(id=uid, trajectories=made.trajectories, metrics=made.metrics)
    if made.last is not None:
        steps[made.last].info[ROLLOUT] = asdict(_rollout_of(stored, made.last, episode))
    pay(episode, Returned(rewards=rewards))
    episode.termination_reason = TerminationReason.ERROR if ending == "failed" else TerminationReason.ENV_DONE
    return episode


def _step_of(stored: StoredSession, row: CallRow) -> Step:
    return Step(
        stored.prompt_ids(row.id),
        row.response_ids,
        row.logprobs,
        text=_response_of(row).text,
        weight_version=row.weight_version,
        version_spans=row.version_spans,
        info={"finish_reason": row.finish_reason},
    )


def _rollout_of(stored: StoredSession, call: str, episode: Episode) -> Rollout:
    """Return the `Rollout` that rewards receive: the conversation that ends with the last response."""
    response = _response_of(next(row for row in stored.calls if row.id == call))
    return Rollout(
        data=stored.session.metadata.get(TASK, {}),
        messages=[*stored.messages(call), response.message],
        response=response,
        response_tokens=sum(trajectory.response_length for trajectory in episode.trajectories),
    )


def _response_of(row: CallRow) -> Response:
    """Return the response, with the content, reasoning and tool calls that the gateway parsed."""
    message = row.response or {}
    content = str(message.get("content") or "")
    return Response(
        text=content,
        content=content,
        reasoning=message.get("reasoning_content"),
        tool_calls=tuple(map(_tool_call, message.get("tool_calls", ()))),
        finish_reason=row.finish_reason,
    )


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    said = call["function"]
    return ToolCall(id=call["id"], name=said["name"], arguments=orjson.loads(said["arguments"] or "{}"))


TASKS_OF_A_FILE = 64
"""Maximum number of tasks in a file. `rllm rescore` treats each file as one step."""


@dataclass
class Exported:
    """Counts of the sessions that `export_episodes` wrote and dropped."""

    episodes: int = 0
    tasks: int = 0
    without_reward: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of sessions that were not written."""


def export_episodes(reader: CallReader, selection: Selection, with_open: bool, directory: Path) -> Exported:
    """Write rollouts as episodes, grouped by the run's task batch and by task.

    A run compares the rollouts of a task batch with each other, even if its weights changed between their first calls.
    Rollouts without a task batch are grouped by the weight version of their first call.

    Args:
        reader: reader of the store.
        selection: the sessions to write.
        with_open: if True, also write sessions that have not ended.
        directory: folder for the episode files, new or empty.

    Raises:
        ConfigError: the folder is not empty, no session is selected, or several models sampled the sessions.
        StoreError: the store cannot be read.
        RecordError: an episode file cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError("directory-in-use", f"{directory} already contains files.", "Use a new or empty folder.")
    done = Exported()
    rollouts = list(_rollouts(sessions_of(reader, selection), with_open, done.left_out))
    sampler, files, number = _sampler_of(rollouts), StepFiles(directory), 0
    by_step: defaultdict[tuple[str, str, int], defaultdict[str, list[SessionRow]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rollouts:
        by_step[_step_name(reader, row)][task_of(row)].append(row)
    for step in sorted(by_step):
        tasks = iter(by_step[step].items())
        while some := list(islice(tasks, TASKS_OF_A_FILE)):
            played = [each for task, rows in some for each in _read_episodes(reader, task, rows, number, done)]
            files.write(number, played, (), "tokens", sampler)
            number += 1
    done.tasks = len({task for of_step in by_step.values() for task in of_step})
    return done


def _step_name(reader: CallReader, row: SessionRow) -> tuple[str, str, int]:
    """Return the name of a session's step. Rollouts of one step may be in the same group.

    Within a run, names sort by time.
    """
    batch = row.metadata.get(BATCH)
    # Sessions of deployed agents have no task batch. Sessions in older stores have none either.
    return ("version", "", reader.first_version(row.id)) if batch is None else ("batch", row.run, batch)


def task_of(row: SessionRow) -> str:
    """Return the id of a session's task within its run.

    The id is made from the first of these that the session has: its ``task_id``, its row and data, its data, its own
    id. The row is not sufficient, because rows of different datasets have the same numbers. Sessions of one task are
    compared with each other, so each session without a task becomes its own task.
    """
    named, _, rollout = row.rollout.rpartition(":")
    name = named if rollout.isdecimal() else ""
    data: Mapping[str, Any] = row.metadata.get(TASK) or {}
    if not name and not data:
        return row.id.replace(":", "-")
    about = {} if row.metadata.get(TASK_ID) else data
    said = json.dumps([row.run, about], sort_keys=True).encode()
    digest = hashlib.blake2b(said, digest_size=8).hexdigest()
    return f"{name}-{digest}" if name else digest


def _rollouts(sessions: Sequence[SessionSummary], with_open: bool, left_out: Counter[str]) -> Iterator[SessionRow]:
    """Yield the sessions to write.

    If a rollout was retried, only its last try is written. Validation sessions are dropped, because they are not
    training data.
    """
    given_up = _given_up(sessions)
    for each in sessions:
        if each.end is None and not with_open:
            left_out["open"] += 1
        elif not each.calls:
            left_out["without a call"] += 1
        elif each.session.id in given_up:
            left_out["tried again"] += 1
        elif each.session.metadata.get(LABEL) == VALIDATION:
            left_out["of validation"] += 1
        else:
            yield each.session


def _given_up(sessions: Sequence[SessionSummary]) -> set[str]:
    """Return the ids of sessions that were retried. A rollout may also be repeated later, starting at its first try."""
    given_up: set[str] = set()
    last: dict[tuple[str, str, str | None], SessionRow] = {}
    for row in (each.session for each in sessions):
        # Training rollouts and validation rollouts of a run can have the same name.
        rollout = (task_of(row), row.rollout, row.metadata.get(LABEL))
        before = last.get(rollout)
        if before is not None and row.retry == before.retry + 1:
            given_up.add(before.id)
        last[rollout] = row
    return given_up


def _sampler_of(rows: Sequence[SessionRow]) -> Sampler:
    found = {(row.metadata.get(TOKENIZER), row.metadata.get(TEMPERATURE)) for row in rows}
    if not found:
        raise ConfigError(
            "no-sessions", "The store has no session to export.", "List its sessions with `rllm gateway sessions`."
        )
    if len(found) > 1:
        raise ConfigError(
            "mixed-sessions",
            "These sessions were sampled by models with several tokenizers, or at several temperatures.",
            "Export one model and temperature at a time: use --run NAME, --session ID, --since TIME or --before TIME.",
        )
    ((tokenizer, temperature),) = found
    return Sampler(tokenizer=tokenizer, temperature=temperature)


def _read_episodes(
    reader: CallReader, task: str, rows: Iterable[SessionRow], number: int, done: Exported
) -> Iterator[PlayedEpisode]:
    for index, row in enumerate(rows):
        stored = reader.session(row.id)
        episode = episode_of(stored, f"{task}:{index}")
        done.episodes += 1
        done.without_reward += any(trajectory.reward is None for trajectory in episode.trajectories)
        yield _as_played(episode, number, row.metadata.get(TASK) or {})


def _as_played(episode: Episode, number: int, task: Mapping[str, Any]) -> PlayedEpisode:
    uid = f"{number}.0:{episode.id}"
    return PlayedEpisode(
        uid=uid,
        step=number,
        round=0,
        episode=episode,
        trajectories=tuple(
            PlayedTrajectory(uid=f"{uid}/{place}", trajectory=each, reward_given=each.reward, reward_used=None)
            for place, each in enumerate(episode.trajectories)
        ),
        task=task,
    )
