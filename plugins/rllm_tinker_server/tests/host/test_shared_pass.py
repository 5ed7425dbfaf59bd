"""Requests of several models in one pass: their results, and errors of one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rllm_tinker_server.host import Host
from rllm_tinker_server.messages import Example, ForwardBackward, ForwardBackwardResult, LoraSpec, RequestRefused
from rllm_tinker_server.shared_pass import SharedPass

from .conftest import STEP, build_tied, build_untied, make_host, make_request, train, weights_of

SPECS = {
    "a": LoraSpec(rank=8, seed=1),
    "b": LoraSpec(rank=4, seed=2, train_unembed=False),
    "c": LoraSpec(rank=6, seed=3, train_mlp=False),
}
REQUESTS = {
    "a": make_request("ppo", (9, 17, 12)),
    "b": make_request("cross_entropy", (16,), seed=1, many=3),
    "c": make_request("gspo", (13, 15), seed=2),
}


def _trained(build: Callable[[], Any]) -> Host:
    """Return a host with models that differ from the base model."""
    host = make_host(build())
    for model_id, spec in SPECS.items():
        host.create(model_id, spec)
        train(host, model_id, make_request(seed=4))
    return host


def _gradient(host: Host, model_id: str) -> torch.Tensor | None:
    parameters = host._learners[model_id].lora.parameters().values()
    found = [parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]
    return torch.cat(found) if found else None


def _shared_passes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return a list to which each shared pass adds its models."""
    passes: list[list[str]] = []
    forward_backward = SharedPass.forward_backward

    def noted(self: SharedPass, jobs: Any) -> Any:
        passes.append([job.model_id for job in jobs])
        return forward_backward(self, jobs)

    monkeypatch.setattr(SharedPass, "forward_backward", noted)
    return passes


def _assert_equal(found: ForwardBackwardResult | Exception, expected: ForwardBackwardResult) -> None:
    assert isinstance(found, ForwardBackwardResult)
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-5)


@pytest.mark.parametrize("build", [build_tied, build_untied])
def test_shared_pass_equals_separate_passes(build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    together, separate = _trained(build), _trained(build)
    passes = _shared_passes(monkeypatch)
    # Two requests of each model, so that gradients accumulate.
    for seed in (0, 5):
        requests = {
            name: replace(each, examples=each.examples[::-1]) if seed else each for name, each in REQUESTS.items()
        }
        results = together.forward_backward_together(requests)
        for model_id, request in requests.items():
            _assert_equal(results[model_id], separate.forward_backward(model_id, request))
    assert passes == [["a", "b", "c"]] * 2
    for model_id in SPECS:
        found, expected = _gradient(together, model_id), _gradient(separate, model_id)
        assert found is not None
        assert expected is not None
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
        norms = [host.optim_step(model_id, STEP)["grad_norm"] for host in (together, separate)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_forward_only_requests_share_a_pass_and_leave_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    host = _trained(build_tied)
    passes = _shared_passes(monkeypatch)
    before = weights_of(host, "a")
    requests = {name: replace(request, forward_only=name != "c") for name, request in REQUESTS.items()}
    results = host.forward_backward_together(requests)
    assert passes == [["a", "b"]]
    assert all(isinstance(result, ForwardBackwardResult) for result in results.values())
    assert _gradient(host, "a") is None
    assert _gradient(host, "b") is None
    assert _gradient(host, "c") is not None
    host.optim_step("a", STEP)
    assert torch.equal(weights_of(host, "a"), before)


def _with_targets(request: ForwardBackward, targets: np.ndarray[Any, Any]) -> ForwardBackward:
    first = request.examples[0]
    return replace(request, examples=(Example(tokens=first.tokens, targets=targets, inputs=first.inputs),))


@pytest.mark.parametrize("fault", ["data", "loss", "loss not finite", "weights not finite", "unknown model"])
def test_error_of_one_request_leaves_the_others(fault: str) -> None:
    host, separate = _trained(build_tied), _trained(build_tied)
    requests = dict(REQUESTS)
    if fault == "data":
        requests["a"] = _with_targets(requests["a"], np.full(9, 900))
    elif fault == "loss":
        requests["a"] = replace(requests["a"], loss="nonsense")
    elif fault == "loss not finite":
        inputs = {**requests["a"].examples[0].inputs, "advantages": np.full(9, 3e38, np.float32)}
        requests["a"] = replace(requests["a"], examples=(replace(requests["a"].examples[0], inputs=inputs),))
    elif fault == "weights not finite":
        with torch.no_grad():
            next(iter(host._learners["a"].lora.parameters().values())).fill_(torch.nan)
    else:
        host.release("a")
    results = host.forward_backward_together(requests)
    assert isinstance(results["a"], RequestRefused)
    if fault != "unknown model":
        assert _gradient(host, "a") is None
    for model_id in ("b", "c"):
        _assert_equal(results[model_id], separate.forward_backward(model_id, requests[model_id]))
        found, expected = _gradient(host, model_id), _gradient(separate, model_id)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_large_or_padded_requests_have_their_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    host, separate = _trained(build_tied), _trained(build_tied)
    passes = _shared_passes(monkeypatch)
    large = {
        "a": make_request("ppo", (100,) * 5),
        "b": make_request("ppo", (100,), seed=1),
        "c": make_request("ppo", (4,) * 9),
    }
    results = host.forward_backward_together(large)
    assert passes == []
    for model_id, request in large.items():
        result, expected = results[model_id], separate.forward_backward(model_id, request)
        assert isinstance(result, ForwardBackwardResult)
        assert all(np.array_equal(*pair) for pair in zip(result.logprobs, expected.logprobs, strict=True))
        found, wanted = _gradient(host, model_id), _gradient(separate, model_id)
        assert found is not None
        assert wanted is not None
        assert torch.equal(found, wanted)
