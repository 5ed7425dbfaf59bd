"""Log-probs of rollouts are those before top-p and top-k, where vLLM can give them."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_verl.logprobs import LOGPROBS_MODE, PROCESSED, RAW, before_truncation, check_logprobs

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("words", "mode", "before"),
    [
        ((), PROCESSED, True),
        (("sampling.train.temperature=0.7",), PROCESSED, True),
        (("sampling.train.top_p=0.9",), RAW, True),
        (("sampling.train.top_k=20",), RAW, True),
        ((f"{ROLLOUT}.top_k=20",), RAW, True),
        (("sampling.train.top_p=0.9", "sampling.train.temperature=0.7"), PROCESSED, False),
        (("sampling.train.top_p=0.9", f"{LOGPROBS_MODE}={PROCESSED}"), PROCESSED, False),
        (("sampling.train.top_p=0.9", "sampling.train.temperature=0.7", "rllm.profile=cpu"), PROCESSED, True),
        (("sampling.train.top_p=0.9", f"{ROLLOUT}.name=sglang"), RAW, False),
    ],
)
def test_the_mode_of_vllm_follows_from_how_rollouts_sample(
    run: Any, words: tuple[str, ...], mode: str, before: bool
) -> None:
    native = run(*words).backend_config.native()
    rollout = native["actor_rollout_ref"]["rollout"]
    check_logprobs(native)
    assert rollout["logprobs_mode"] == mode
    assert before_truncation(rollout) is before


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        ((f"{LOGPROBS_MODE}={RAW}", "sampling.train.temperature=0.7"), "bad-logprobs-mode", [RAW, 0.7]),
        ((f"{LOGPROBS_MODE}=processed_logits",), "wrong-value", ["processed_logprobs", "raw_logprobs"]),
        ((f"{ROLLOUT}.engine_kwargs.vllm.logprobs_mode={RAW}",), "conflicting-keys", [f"`{LOGPROBS_MODE}`"]),
    ],
)
def test_modes_that_give_other_numbers_are_refused(
    run: Any, words: tuple[str, ...], code: str, values: list[object]
) -> None:
    with expect_error(ConfigError, code, *values):
        check_logprobs(run(*words).backend_config.native())


@pytest.mark.long
def test_rollout_correction_is_refused_where_vllm_has_no_log_probs_before_truncation(run: Any) -> None:
    words = ("sampling.train.top_p=0.9", "sampling.train.temperature=0.7")
    correction = "rllm.algorithm.rollout_correction.tis_mode=token"
    check_logprobs(run(*words).backend_config.native())
    check_logprobs(run(words[0], correction).backend_config.native())
    with pytest.raises(ConfigError, match=r"tis_mode=token needs the sampler's log-probs.*temperature=0.7"):
        check_logprobs(run(*words, correction).backend_config.native())
    with pytest.raises(ConfigError, match=rf"(?s)`{LOGPROBS_MODE}` {PROCESSED}.*Remove .* derived from sampling"):
        check_logprobs(run(words[0], correction, f"{LOGPROBS_MODE}={PROCESSED}").backend_config.native())


@pytest.mark.long
def test_the_sampler_s_log_probs_as_old_ones_are_refused_where_vllm_has_none(run: Any) -> None:
    """They would be the trainer's all the same, and the dry run would say that they are the sampler's."""
    words = ("sampling.train.top_p=0.9", "rllm.algorithm.rollout_correction.bypass_mode=true")
    check_logprobs(run(*words).backend_config.native())
    check_logprobs(run(*words, "sampling.train.temperature=0.7", "rllm.profile=cpu").backend_config.native())
    with pytest.raises(ConfigError, match=r"bypass_mode=true needs the sampler's log-probs.*temperature=0.7"):
        check_logprobs(run(*words, "sampling.train.temperature=0.7").backend_config.native())
