"""Log-probs of rollouts are those before top-p and top-k, where vLLM can give them."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_verl.logprobs import (
    DERIVED_LOGPROBS_MODE,
    LOGPROBS_MODE,
    PROCESSED,
    RAW,
    check_logprobs,
    has_untruncated_logprobs,
)

ROLLOUT = "actor_rollout_ref.rollout"
WARM = {f"{ROLLOUT}.temperature": 0.7}
CUT = {f"{ROLLOUT}.top_p": 0.9}
RAW_MODE, PROCESSED_MODE = {LOGPROBS_MODE: RAW}, {LOGPROBS_MODE: PROCESSED}
CORRECTION = {"algorithm.rollout_correction.rollout_is": "token"}
BYPASS = {"algorithm.rollout_correction.bypass_mode": True}


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "mode"),
    [
        (1.0, 1.0, -1, PROCESSED),
        (0.7, 1.0, -1, PROCESSED),
        (1.0, 0.9, -1, RAW),
        (1.0, 1.0, 20, RAW),
        (0.7, 0.9, -1, PROCESSED),
    ],
)
def test_mode_follows_from_sampling(temperature: float, top_p: float, top_k: int, mode: str) -> None:
    assert DERIVED_LOGPROBS_MODE.derive(temperature, top_p, top_k) == mode


def test_logprobs_mode_is_derived_unless_set(run: Any) -> None:
    assert run("sampling.train.top_p=0.9").value(LOGPROBS_MODE) == RAW
    assert run("sampling.train.top_p=0.9", f"{LOGPROBS_MODE}={PROCESSED}").value(LOGPROBS_MODE) == PROCESSED


@pytest.mark.parametrize(
    ("profile", "values", "before"),
    [
        (None, {}, True),
        (None, RAW_MODE | CUT, True),
        (None, RAW_MODE | {f"{ROLLOUT}.top_k": 20}, True),
        (None, CUT | WARM, False),
        (None, {f"{ROLLOUT}.top_k": 20}, False),
        ("cpu", CUT | WARM | BYPASS, True),
        (None, RAW_MODE | CUT | {f"{ROLLOUT}.name": "sglang"}, False),
        (None, RAW_MODE | CUT | CORRECTION, True),
        (None, RAW_MODE | CUT | BYPASS, True),
    ],
)
def test_log_probs_before_truncation_are_known(change: Any, profile: str | None, values: Any, before: bool) -> None:
    native = change(profile, values).native()
    check_logprobs(native)
    assert has_untruncated_logprobs(native["actor_rollout_ref"]["rollout"]) is before


@pytest.mark.parametrize(
    ("values", "code", "said"),
    [
        (RAW_MODE | WARM, "bad-logprobs-mode", [RAW, 0.7]),
        ({LOGPROBS_MODE: "processed_logits"}, "wrong-value", ["processed_logprobs", "raw_logprobs"]),
        ({f"{ROLLOUT}.engine_kwargs.vllm": {"logprobs_mode": RAW}}, "conflicting-keys", [f"`{LOGPROBS_MODE}`"]),
        (CUT | WARM | CORRECTION, "missing-logprobs", ["tis_mode=token", "temperature=0.7"]),
        (CUT | CORRECTION | PROCESSED_MODE, "bad-logprobs-mode", [f"`{LOGPROBS_MODE}` {PROCESSED}", "Remove"]),
        (CUT | WARM | BYPASS, "missing-logprobs", ["bypass_mode=true", "temperature=0.7"]),
    ],
)
def test_modes_that_give_other_numbers_are_refused(
    change: Any, values: dict[str, Any], code: str, said: list[object]
) -> None:
    with expect_error(ConfigError, code, *said):
        check_logprobs(change(None, values).native())
