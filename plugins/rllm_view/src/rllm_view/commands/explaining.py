"""Why a gradient is what it is, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from rllm_core.errors import ConfigError
from rllm_core.notices import harmless
from rllm_view.commands.playback import whole_facts
from rllm_view.commands.unpushed import no_advantage, no_push
from rllm_view.reading.account import Account
from rllm_view.reading.columns import Column, strongest, value_at
from rllm_view.reading.panel import Fact, facts_of, number, turn_of

ADAMW = "The optimizer scales gradients by their history, so a single token's change of the weights is not defined."


def about_whole(account: Account, top: int) -> Iterator[str]:
    """The facts of the whole, and its strongest tokens."""
    yield harmless(account.attempt.uid)
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
    """Return the facts of a sampled token. For a token of a prompt, list the sampled tokens.

    Raises:
        ConfigError: there is no such token.
    """
    length = account.attempt.length
    if position >= length:
        raise ConfigError("unknown-token", f"The trajectory has {length} tokens.", f"Name one from 0 to {length - 1}.")
    yield f"token {position} of {harmless(account.attempt.uid)}: {_text(account, position)}"
    place = turn_of(account, position)
    if place is None or position < account.attempt.turns[place].response_start:
        yield "This token is part of a prompt, so it has no gradient."
        sampled = (f"{turn.response_start} to {turn.end - 1}" for turn in account.attempt.turns)
        yield f"hint: Use a sampled token: {', '.join(sampled)}."
        return
    for fact in facts_of(account):
        yield f"{fact.title}: {harmless(_fact(account, fact, position))}".rstrip()
        for name in fact.columns:
            yield from _figures(account, name, position)
    yield f"\n{ADAMW}"


def _fact(account: Account, fact: Fact, position: int) -> str:
    place = turn_of(account, position)
    turn = None if place is None else account.attempt.turns[place]
    if turn is None or fact.title not in ("Turn", "Weight version"):
        return fact.text or ""
    if fact.title == "Turn":
        return f"{place}, sampled"
    behind = turn.response_start
    for version, tokens in turn.version_spans:
        behind += tokens
        if turn.response_start <= position < behind:
            return str(version)
    return str(turn.weight_version)


def _figures(account: Account, name: str, position: int) -> Iterator[str]:
    for column in _columns(account, name):
        value = value_at(column, position)
        epoch = "" if column.epoch is None else f", epoch {column.epoch}"
        unit = "" if not column.unit or value is None else f" {column.unit}"
        yield f"    {column.title}{epoch}: {column.missing if value is None else _shown(column, value)}{unit}"


def _shown(column: Column, value: float) -> str:
    return column.words.get(number(value), number(value))


def _columns(account: Account, name: str) -> list[Column]:
    return [each for each in account.columns if each.id == name]


def _push_title(account: Account) -> list[str]:
    return [f"push in epoch {each.epoch}" for each in _columns(account, "push")]


def _text(account: Account, position: int) -> str:
    return "text not recorded" if account.texts is None else harmless(repr(account.texts[position]))
