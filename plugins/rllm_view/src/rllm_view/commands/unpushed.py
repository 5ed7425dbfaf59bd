"""Why no token of a trajectory has a push, and what still moves them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rllm_view.reading.account import Account
from rllm_view.reading.columns import Column
from rllm_view.reading.panel import number

TERMS = {"kl_part": "the KL term", "entropy_part": "the entropy bonus"}


def no_push(account: Account) -> str:
    """Return why a trajectory's tokens have no push."""
    pushes = _known(account, "push")
    if not pushes:
        return next((each.missing for each in account.columns if each.id == "push"), "not recorded")
    if account.decided.advantage != 0.0:
        return "none: the policy and KL part of each of them are 0"
    return "; ".join(["none: its advantage is 0", *_movers(account)])


def no_advantage(account: Account) -> Iterator[str]:
    """Explain the push of a trajectory with advantage 0: the other parts of the loss that cause it."""
    if account.decided.advantage == 0.0:
        yield "; ".join(["its advantage is 0: the policy loss pushes none of its tokens", *_movers(account)])


def _movers(account: Account) -> Iterator[str]:
    for name, term in TERMS.items():
        values = [each.values for each in _known(account, name) if each.values is not None]
        known = np.concatenate(values) if values else np.zeros(0)
        known = known[~np.isnan(known)]
        if known.any():
            title = next(each.title for each in account.columns if each.id == name)
            yield f"{term} still moves them ({title} from {number(float(known.min()))} to {number(float(known.max()))})"


def _known(account: Account, name: str) -> list[Column]:
    return [each for each in account.columns if each.id == name and each.values is not None]
