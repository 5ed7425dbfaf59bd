"""What errors are made of."""

from __future__ import annotations

import pickle

import pytest

from rllm_core.errors import BackendError, ConfigError, LossError, RllmError, did_you_mean


@pytest.mark.parametrize("kind", [RllmError, BackendError, ConfigError, LossError])
def test_message_and_hint_stay_apart_on_the_way_from_another_process(kind: type[RllmError]) -> None:
    error = pickle.loads(pickle.dumps(kind("It failed.", "Try again.")))
    assert type(error) is kind
    assert (error.message, error.hint, str(error)) == ("It failed.", "Try again.", "It failed. Try again.")


def test_a_name_in_other_letters_is_meant() -> None:
    assert did_you_mean("RLOO", ["grpo", "rloo"]) == "Did you mean 'rloo'?"
