"""The data that `rllm episode --json` and `rllm why --json` print."""

from __future__ import annotations

from typing import Any

import click

from rllm_view.answers import SHOWN
from rllm_view.as_json import as_json
from rllm_view.commands.explaining import OF_WHOLE, describe_fact, no_push, require_token
from rllm_view.reading.account import Account, facts_of, turn_of
from rllm_view.reading.columns import strongest, value_at


def print_json(data: Any) -> None:
    """Print data classes, dicts and lists as JSON, in one line."""
    click.echo(as_json(data).decode())


def episode_values(account: Account) -> dict[str, Any]:
    """Return the trajectory with its turns, and its outcome in the step."""
    return {**{name: getattr(account.rollout, name) for name in SHOWN}, "outcome": account.decided}


def why_values(account: Account, top: int) -> dict[str, Any]:
    """Return the outcome, the group, the facts about all tokens, and the strongest tokens with their pushes."""
    tokens = [
        {
            "token": position,
            "turn": turn_of(account, position),
            "text": None if account.texts is None else account.texts[position],
            "pushes": [
                {"epoch": each.epoch, "value": value_at(each, position)}
                for each in account.columns
                if each.id == "push"
            ],
        }
        for position in strongest(account.columns, top)
    ]
    return {
        "uid": account.rollout.uid,
        "outcome": account.decided,
        "group": account.group,
        "facts": {fact.title: fact.text for fact in facts_of(account) if fact.title in OF_WHOLE},
        "objective": account.objective,
        "strongest_tokens": tokens,
        "no_push": None if tokens else no_push(account),
    }


def token_values(account: Account, position: int) -> dict[str, Any]:
    """Return the facts about a sampled token, and the values of all its columns. A missing value has a reason.

    Raises:
        ConfigError: the token does not exist.
    """
    require_token(account, position)
    place = turn_of(account, position)
    is_sampled = place is not None and position >= account.rollout.turns[place].response_start
    facts = facts_of(account) if is_sampled else ()
    return {
        "uid": account.rollout.uid,
        "token": position,
        "turn": place,
        "is_sampled": is_sampled,
        "text": None if account.texts is None else account.texts[position],
        "facts": {fact.title: describe_fact(account, fact, position) for fact in facts},
        "values": [
            {
                "id": each.id,
                "title": each.title,
                "epoch": each.epoch,
                "unit": each.unit,
                "value": (value := value_at(each, position)),
                "missing": each.missing if value is None else None,
            }
            for each in account.columns
        ],
    }
