"""Faults of weight syncs stop a run at their sync, and clean syncs give no alarm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from local_backend import HostedCopy, ScoringCopy, TwoReplicas
from weight_faults import HOSTED, LORA, SENT, ExpectedError, faulty_copies, make_check, make_context, run_steps

from rllm.builtin.weight_check.observer import WeightCheck
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.engine import NamedTensors
from rllm_core.contracts.params import NoParams
from rllm_core.errors import BackendError
from rllm_local import samplers
from rllm_local.backend import LocalBackend


def expect_stop(context: RunContext, expected: ExpectedError, check: WeightCheck | None = None) -> str:
    """Return the message of the error that stops a run."""
    with pytest.raises(BackendError) as raised:
        run_steps(LocalBackend(), context, check or make_check())
    message = raised.value.message
    assert (raised.value.code, expected.text in message) == (expected.code, True), message
    assert message.startswith("After weight sync 2, ")
    return message


@pytest.mark.parametrize("name", SENT)
def test_fault_in_our_sender_is_named(name: str) -> None:
    fault, expected = SENT[name]
    with faulty_copies(fault):
        expect_stop(make_context(versions=2, **expected.sections), expected)


@pytest.mark.parametrize("name", HOSTED)
def test_fault_in_hosted_engine_is_named(name: str) -> None:
    make, expected = HOSTED[name]
    expect_stop(make_context(engine=make(), **expected.sections), expected)


@pytest.mark.parametrize("name", ["shard missing", "sync of step k - 1"])
def test_fault_below_the_rounding_of_bfloat16_is_named(name: str) -> None:
    fault, expected = SENT[name]
    small = {"model": {"dtype": "bfloat16"}, "training": {"learning_rate": 3e-5, "max_length": 200}}
    with faulty_copies(fault):
        message = expect_stop(make_context(versions=2, **small), expected)
    assert float(message.rpartition("by up to ")[2].rstrip(".")) < 0.1


@pytest.mark.long
def test_stale_copy_of_the_training_process_is_named() -> None:
    fault, expected = SENT["sync of step k - 1"]
    with faulty_copies(fault):
        expect_stop(replace(make_context(), overlaps=True), expected)


def test_tied_head_of_a_copy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_model = samplers.copy_model

    def copy_with_own_head(model: Any, trained: Any) -> Any:
        copied = copy_model(model, trained)
        copied.lm_head.weight = torch.nn.Parameter(copied.lm_head.weight.detach().clone())
        return copied

    monkeypatch.setattr(samplers, "copy_model", copy_with_own_head)
    with pytest.raises(BackendError, match=r"After weight sync 1, .* tensors differ: lm_head\.weight\."):
        run_steps(LocalBackend(), make_context(versions=2), make_check())


def test_difference_without_digests_is_unknown() -> None:
    class Silent(ScoringCopy):
        async def digests(self, replica: str) -> Mapping[str, str]:
            return {}

        async def load_weights(self, weights: NamedTensors, version: int) -> None:
            scale = 1.0 + 0.1 * (version == 2)
            await super().load_weights({name: scale * tensor for name, tensor in weights}.items(), version)

    expected = ExpectedError("sampler-weights-unknown", "replica 0 does not have the trained weights.")
    expect_stop(make_context(engine=Silent(NoParams())), expected)


def test_warning_does_not_stop_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with faulty_copies(SENT["sync of step k - 1"][0]):
        run_steps(LocalBackend(), make_context(versions=2), make_check(on_difference="warn"))
    assert "warning: After weight sync 2, the sampler is unchanged since sync 1." in capsys.readouterr().err


CLEAN = {
    "shared": {},
    "two versions": {"versions": 2},
    "hosted": {"engine": ScoringCopy},
    "two replicas": {"engine": TwoReplicas},
    "LoRA": LORA,
    "LoRA hosted": {"engine": ScoringCopy, **LORA},
    "bfloat16": {"versions": 2, "model": {"dtype": "bfloat16"}},
    "bfloat16 hosted": {"engine": ScoringCopy, "model": {"dtype": "bfloat16"}},
    "LoRA bfloat16 hosted": {"engine": ScoringCopy, "model": {"dtype": "bfloat16", "lora_rank": 4}},
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_syncs_give_no_alarm(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = dict(CLEAN[name])
    if "engine" in settings:
        settings["engine"] = settings["engine"](NoParams())
    run_steps(LocalBackend(), make_context(**settings), make_check())
    (line,) = capsys.readouterr().err.splitlines()
    assert " has the trained weights: log-probs are equal" in line


def test_engine_without_scores_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    run_steps(LocalBackend(), make_context(engine=HostedCopy(NoParams())), make_check())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("The sampler's weights are not checked")
