"""Rows of preferences become completions after one prompt; a row that has none is named."""

from __future__ import annotations

from typing import Any

import pytest

from rllm.builtin.preferences.rows import check_completions, read_preference
from rllm.builtin.supervised.rows import Conversation, PlainText
from rllm.rows.problem import RowError

ASK = [{"role": "user", "content": "1+1"}]
GOOD, BAD = [{"role": "assistant", "content": "2"}], [{"role": "assistant", "content": "3"}]


def test_rows_have_a_pair_or_a_labeled_completion() -> None:
    chosen, rejected = {"chosen": PlainText("1+1=", "2")}, {"rejected": PlainText("1+1=", "3")}
    assert read_preference({"prompt": "1+1=", "chosen": "2", "rejected": "3"}) == chosen | rejected
    row = {"prompt": "1+1=", "completion": "2", "label": True}
    assert read_preference(row) == chosen
    assert list(read_preference(row | {"label": False})) == ["rejected"]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASK, "chosen": GOOD, "rejected": BAD},
        {"chosen": ASK + GOOD, "rejected": ASK + BAD},
        # Some data sets repeat the prompt as text.
        {"prompt": "1+1", "chosen": ASK + GOOD, "rejected": ASK + BAD},
    ],
    ids=str,
)
def test_prompt_is_the_common_start_of_messages(row: dict[str, Any]) -> None:
    assert read_preference(row) == {
        "chosen": Conversation(ASK + GOOD, 1),
        "rejected": Conversation(ASK + BAD, 1),
    }


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_only_kto_has_single_completions(loss: str) -> None:
    check_completions(["chosen"], "kto")
    check_completions(["chosen", "rejected"], loss)
    for names in (["chosen"], ["rejected"], ["rejected", "chosen"]):
        with pytest.raises(RowError, match=loss):
            check_completions(names, loss)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"messages": ASK + GOOD},
        {"prompt": "1+1=", "completion": "2"},
        {"prompt": "1+1=", "completion": "2", "label": "good"},
        {"chosen": "2", "rejected": "3"},
        {"prompt": ASK, "chosen": GOOD, "rejected": "3"},
        {"chosen": ASK + GOOD, "rejected": ASK + GOOD},
        {"prompt": "1+1=", "completion": GOOD, "label": True},
    ],
    ids=str,
)
def test_rows_without_preference_are_errors(row: dict[str, Any]) -> None:
    with pytest.raises(RowError) as caught:
        read_preference(row)
    assert '"chosen": …, "rejected": …' in caught.value.hint
    assert '"messages"' not in caught.value.hint


@pytest.mark.parametrize("start", [[], [{"role": "system", "content": "Add."}]], ids=str)
def test_text_prompt_that_messages_lack_is_an_error(start: list[dict[str, str]]) -> None:
    row = {"prompt": "1+1", "chosen": start + GOOD, "rejected": start + BAD}
    with pytest.raises(RowError, match="prompt is text") as caught:
        read_preference(row)
    assert '"prompt": [{"role": "user"' in caught.value.hint
