"""Print a trajectory as lines of text: its messages, and the causes of its tokens' gradient."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rllm_core.errors import ConfigError
from rllm_core.notices import harmless
from rllm_record.run_files import one_run
from rllm_view.reading.account import Account, Fact, account_of, facts_of, number, turn_of
from rllm_view.reading.columns import Column, strongest, value_at
from rllm_view.reading.rollout import Turn
from rllm_view.reading.run import Run

_TRAJECTORIES = """
SELECT o.trajectory, t.task_id FROM outcomes o LEFT JOIN trajectories t USING (trajectory)
WHERE o.step = ? ORDER BY o.trajectory_key
"""
SHOWN = 5
"""Number of uids in an error."""


def account_for(directory: Path, step: int, name: str) -> Account:
    """Return the account of the trajectory `name`: its uid, or a part of it that is unique in the step.

    Raises:
        ConfigError: the directory contains no run, or the name matches no trajectory or several.
        RecordError: the step is not recorded, or a file of it cannot be read.
    """
    run = Run(one_run(directory))
    run.require_step(step)
    run.index.refresh()
    problem = run.index.problems.get(step)
    if problem is not None:
        raise problem
    return account_of(run, step, _uid(run, step, name))


def _uid(run: Run, step: int, name: str) -> str:
    rows = run.index.rows(_TRAJECTORIES, [step])
    uids = [str(row["trajectory"]) for row in rows]
    if name in uids:
        return name
    found = (
        # `task-3:5` means the task `task-3` before `my-task-3`, and rollout 5, not 50.
        [uid for uid in uids if short_uid(uid) == name]
        or [uid for uid, row in zip(uids, rows, strict=True) if row["task_id"] == name]
        or [uid for uid in uids if uid.rpartition("/")[0].endswith(name)]
        or [uid for uid in uids if name in uid]
    )
    if len(found) == 1:
        return found[0]
    if found:
        uids_shown = ", ".join(found[:SHOWN]) + ", …" * (len(found) > SHOWN)
        raise ConfigError(
            "ambiguous-trajectory",
            f"{name!r} matches {len(found)} trajectories of step {step}.",
            f"Choose one of them: {uids_shown}",
        )
    names = ", ".join(uids[:SHOWN]) + ", …" * (len(uids) > SHOWN)
    raise ConfigError("unknown-trajectory", f"Step {step} has no trajectory {name!r}.", f"It has {len(uids)}: {names}")


def short_uid(uid: str) -> str:
    """Return the task and the number of the rollout: ``task-3:5`` from ``12.0:task-3:5/0``."""
    return uid.rpartition("/")[0].partition(":")[2]


OF_WHOLE = ("Reward", "Group", "Estimator", "Advantage", "Filter")
"""Facts that are the same for all tokens."""
UNRECORDED = "(text not recorded; a run with rllm.record=tokens records it)"


def playback(account: Account) -> Iterator[str]:
    """Yield the head, the turns and the termination reason."""
    rollout = account.rollout
    yield harmless(f"{rollout.uid}  {rollout.name}, task {rollout.task_id}, generated in step {rollout.step}")
    if rollout.task is not None:
        yield f"task: {harmless(_as_text(rollout.task))}"
    for place, turn in enumerate(rollout.turns):
        yield ""
        yield from _turn(place, turn)
    yield ""
    solved = "solved" if rollout.is_correct else "not solved"
    tries = "" if rollout.tries == 1 else f", {rollout.tries} tries"
    yield f"ended: {harmless(rollout.termination_reason)}, {solved}{tries}"
    if rollout.error:
        yield f"error: {harmless(rollout.error)}"
    yield from whole_facts(account)


def whole_facts(account: Account) -> Iterator[str]:
    """Yield a line each for reward, group, estimator, advantage and filter."""
    for fact in facts_of(account):
        if fact.title in OF_WHOLE and fact.text is not None:
            yield f"{fact.title.lower()}: {harmless(fact.text)}"


def _turn(number: int, turn: Turn) -> Iterator[str]:
    tokens = turn.end - turn.response_start
    reason = harmless(turn.finish_reason or "no reason")
    yield f"── turn {number}, weights {turn.weight_version}, {tokens} tokens, {reason} ──"
    for message in turn.observations or ():
        yield harmless(f"{message.role}: {message.text}")
    yield f"→ {UNRECORDED if turn.text is None else harmless(turn.text)}"


def _as_text(data: str) -> str:
    """Return JSON with letters instead of their escapes, so that it is readable."""
    return json.dumps(json.loads(data), ensure_ascii=False)


TERMS = {"kl_part": "the KL term", "entropy_part": "the entropy bonus"}


def no_push(account: Account) -> str:
    """Return why a trajectory's tokens have no push."""
    pushes = _filled_columns(account, "push")
    if not pushes:
        return next((each.missing for each in account.columns if each.id == "push"), "not recorded")
    if account.decided.advantage != 0.0:
        return "none: the policy part and the KL part of each token are 0"
    return "; ".join(["none: its advantage is 0", *_movers(account)])


def no_advantage(account: Account) -> Iterator[str]:
    """Explain the push of a trajectory with advantage 0: the other parts of the loss that cause it."""
    if account.decided.advantage == 0.0:
        yield "; ".join(["its advantage is 0: the policy loss pushes none of its tokens", *_movers(account)])


def _movers(account: Account) -> Iterator[str]:
    for name, term in TERMS.items():
        values = [each.values for each in _filled_columns(account, name) if each.values is not None]
        known = np.concatenate(values) if values else np.zeros(0)
        known = known[~np.isnan(known)]
        if known.any():
            title = next(each.title for each in account.columns if each.id == name)
            yield (
                f"{term} still changes them ({title} from {number(float(known.min()))} to {number(float(known.max()))})"
            )


def _filled_columns(account: Account, name: str) -> list[Column]:
    return [each for each in account.columns if each.id == name and each.values is not None]


ADAMW = "The optimizer scales gradients by their history, so a single token's change of the weights is not defined."


def about_whole(account: Account, top: int) -> Iterator[str]:
    """Yield the facts of the whole trajectory, and its strongest tokens."""
    yield harmless(account.rollout.uid)
    yield from whole_facts(account)
    tokens = strongest(account.columns, top)
    if not tokens:
        yield f"push of its tokens: {no_push(account)}"
        return
    yield from no_advantage(account)
    yield f"\nstrongest tokens ({', '.join(_push_title(account))}):"
    for position in tokens:
        pushes = ", ".join(number(value_at(each, position)) for each in _columns(account, "push"))
        yield f"  token {position}, turn {turn_of(account, position)}, {_text(account, position)}: {pushes}"
    yield f"\n{ADAMW}\nAdd --token {tokens[0]} to see all values of the first token."


def about_token(account: Account, position: int) -> Iterator[str]:
    """Yield the facts of a sampled token. For a token of a prompt, list the sampled tokens.

    Raises:
        ConfigError: the token does not exist.
    """
    require_token(account, position)
    yield f"token {position} of {harmless(account.rollout.uid)}: {_text(account, position)}"
    place = turn_of(account, position)
    if place is None or position < account.rollout.turns[place].response_start:
        yield "This token is part of a prompt, so the policy loss has no gradient for it."
        sampled = (f"{turn.response_start} to {turn.end - 1}" for turn in account.rollout.turns)
        yield f"hint: Use a sampled token: {', '.join(sampled)}."
        return
    for fact in facts_of(account):
        yield f"{fact.title}: {harmless(describe_fact(account, fact, position))}".rstrip()
        for name in fact.columns:
            yield from _value_lines(account, name, position)
    yield f"\n{ADAMW}"


def require_token(account: Account, position: int) -> None:
    """Raise a ConfigError if the trajectory has no token with this number."""
    length = account.rollout.length
    if position >= length:
        raise ConfigError(
            "unknown-token", f"The trajectory has {length} tokens.", f"Use a number from 0 to {length - 1}."
        )


def describe_fact(account: Account, fact: Fact, position: int) -> str:
    """Return a fact about a token as text."""
    place = turn_of(account, position)
    turn = None if place is None else account.rollout.turns[place]
    if turn is None or fact.title not in ("Turn", "Weight version"):
        return fact.text or ""
    if fact.title == "Turn":
        return f"{place}, sampled"
    end = turn.response_start
    for version, tokens in turn.version_spans:
        end += tokens
        if turn.response_start <= position < end:
            return str(version)
    return str(turn.weight_version)


def _value_lines(account: Account, name: str, position: int) -> Iterator[str]:
    for column in _columns(account, name):
        value = value_at(column, position)
        epoch = "" if column.epoch is None else f", epoch {column.epoch}"
        unit = "" if not column.unit or value is None else f" {column.unit}"
        yield f"    {column.title}{epoch}: {column.missing if value is None else _format_column(column, value)}{unit}"


def _format_column(column: Column, value: float) -> str:
    return column.words.get(number(value), number(value))


def _columns(account: Account, name: str) -> list[Column]:
    return [each for each in account.columns if each.id == name]


def _push_title(account: Account) -> list[str]:
    return [f"push in epoch {each.epoch}" for each in _columns(account, "push")]


def _text(account: Account, position: int) -> str:
    return "text not recorded" if account.texts is None else harmless(repr(account.texts[position]))
