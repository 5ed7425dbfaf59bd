"""The tiny model's tokenizer and chat template, and exact tokens over the turns of a conversation."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rllm_core.contracts.renderer import Renderer
from rllm_core.rollout.template_renderer import TemplateRenderer

ALPHABET = string.ascii_lowercase + string.digits + " .,?!:+-=\n"
PIECES = ["lower", "higher", "correct", "number", "guess", "plus", "is", "0", "7", "10", "31", "32", "a", " ", ". "]
words = st.lists(st.sampled_from(PIECES) | st.sampled_from(ALPHABET), max_size=30).map("".join)
END, UNKNOWN = 2, 1


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return TemplateRenderer(tokenizer, [END])


def _encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@given(text=words | st.text(max_size=40))
def test_any_text_encodes_with_unknown_tokens(tokenizer: Any, text: str) -> None:
    ids = _encode(tokenizer, text)
    known = all(character in ALPHABET for character in text.lower())
    if not any(special in text for special in tokenizer.all_special_tokens):
        assert (UNKNOWN not in ids) == known
        if known:
            assert tokenizer.decode(ids, skip_special_tokens=True) == text.lower()
    assert all(0 <= token < len(tokenizer) for token in ids)


@pytest.mark.parametrize("text", ["#", "é", "{", "<", "日本", "\x00", "\t", "🎲"])
def test_characters_outside_the_alphabet_become_unknown(tokenizer: Any, text: str) -> None:
    assert _encode(tokenizer, f"a{text}b") == [
        *_encode(tokenizer, "a"),
        *[UNKNOWN] * len(text),
        *_encode(tokenizer, "b"),
    ]


def test_small_numbers_and_game_words_are_single_tokens(tokenizer: Any) -> None:
    for text in [*map(str, range(32)), "lower", "higher", "correct", "number", "guess", "plus", "is"]:
        assert len(_encode(tokenizer, text)) == 1
    assert len(_encode(tokenizer, "32")) == 2
    assert len({_encode(tokenizer, str(number))[0] for number in range(32)}) == 32


@pytest.mark.parametrize("alphabet", [string.ascii_lowercase, string.digits, "z", "0"])
def test_very_long_words_survive_encoding_and_decoding(tokenizer: Any, alphabet: str) -> None:
    word = (alphabet * 100_000)[:100_000]
    ids = _encode(tokenizer, word)
    assert UNKNOWN not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == word


def test_sequences_of_letters_are_split_after_16(tokenizer: Any) -> None:
    guess, number = _encode(tokenizer, "guess"), _encode(tokenizer, "31")
    assert _encode(tokenizer, "guess" * 3) == guess * 3
    assert _encode(tokenizer, "guess" * 4) == [*guess * 3, *_encode(tokenizer, "g"), *_encode(tokenizer, "uess")]
    assert _encode(tokenizer, "31" * 8) == number * 8
    assert _encode(tokenizer, "1" + "31" * 8)[-1:] == _encode(tokenizer, "1")


def test_the_vocabulary_has_no_holes(tokenizer: Any) -> None:
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_the_chat_template_closes_what_the_assistant_says(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "play"},
        {"role": "user", "content": "guess"},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "lower"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<system>play<end>guess7<end>lower"
    assert tokenizer.apply_chat_template(messages[:1], tokenize=False) == "<system>play<end>"


# The response follows at once on the user's last words; a full stop between them is never one token with a neighbor.
turn = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": words.map(lambda text: text + ".")}),
    min_size=1,
    max_size=3,
)


@given(first=turn, rest=st.lists(st.tuples(words, turn), min_size=1, max_size=4))
def test_turn_by_turn_tokens_equal_the_whole_template(
    renderer: Renderer, tokenizer: Any, first: list[dict[str, str]], rest: list[tuple[str, list[dict[str, str]]]]
) -> None:
    messages = list(first)
    tokens = renderer.prompt(first).tolist()
    for response, observed in rest:
        tokens += [*_encode(tokenizer, response), END]
        assert renderer.text([*_encode(tokenizer, response), END]) == response
        tokens += renderer.continuation(END, observed).tolist()
        messages += [{"role": "assistant", "content": response}, *observed]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokens == _encode(tokenizer, whole)


@given(response=words.filter(bool), observed=turn)
def test_truncated_response_is_closed_before_next_message(
    renderer: Renderer, tokenizer: Any, response: str, observed: list[dict[str, str]]
) -> None:
    sampled = _encode(tokenizer, response)
    continuation = renderer.continuation(sampled[-1], observed)
    assert continuation[0] == END
    first = [{"role": "user", "content": "go."}]
    messages = [*first, {"role": "assistant", "content": response}, *observed]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert [*renderer.prompt(first), *sampled, *continuation] == _encode(tokenizer, whole)
