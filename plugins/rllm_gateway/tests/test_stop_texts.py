"""A response is cut at the token that completes a stop text, and keeps what belongs to the tokens before."""

from __future__ import annotations

import numpy as np
import pytest

from rllm_core.contracts.engine import Completion
from rllm_core.data.version_spans import VersionSpan
from rllm_gateway.link_trainer import cut_at_texts, first_spans


def text_of(ids: object) -> str:
    return "".join(chr(token) for token in np.asarray(ids).tolist())


def completion(text: str, spans: tuple[VersionSpan, ...] = ()) -> Completion:
    return Completion(
        token_ids=np.array([ord(character) for character in text], np.int32),
        logprobs=-np.arange(len(text), dtype=np.float32),
        finish_reason="length",
        weight_version=min((span.version for span in spans), default=3),
        version_spans=spans,
    )


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("ab\nOb c", ("\nOb",), "ab\nOb"),
        ("a.b,c", (",", "."), "a."),
        ("x", ("x",), "x"),
        ("aSTOPSTOP", ("STOP",), "aSTOP"),
    ],
)
def test_the_token_that_completes_the_text_is_the_last(text: str, stop: tuple[str, ...], left: str) -> None:
    cut = cut_at_texts(completion(text), text_of, stop)
    assert text_of(cut.token_ids) == left
    assert cut.logprobs.tolist() == [-float(place) for place in range(len(left))]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_a_response_without_the_text_stays_as_it_is(stop: tuple[str, ...]) -> None:
    whole = completion("some words")
    assert cut_at_texts(whole, text_of, stop) is whole


def test_the_oldest_version_is_that_of_the_tokens_that_are_left() -> None:
    spans = (VersionSpan(4, 3), VersionSpan(2, 5))
    cut = cut_at_texts(completion("ab|defgh", spans), text_of, ("|",))
    assert (cut.weight_version, cut.version_spans) == (4, (VersionSpan(4, 3),))


def test_the_first_runs_cover_the_tokens_that_are_asked_for() -> None:
    spans = (VersionSpan(1, 2), VersionSpan(2, 4))
    assert first_spans(spans, 3) == (VersionSpan(1, 2), VersionSpan(2, 1))
    assert first_spans((), 3) == ()
