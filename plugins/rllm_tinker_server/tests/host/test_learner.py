"""Gradients that add up, the steps made with them, and what is refused without a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_tinker_server import learner
from rllm_tinker_server.examples import example_batches
from rllm_tinker_server.host import Host
from rllm_tinker_server.messages import (
    AdamStep,
    Example,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    RequestError,
)

from .conftest import (
    STEP,
    build_tied_model,
    build_untied_model,
    make_examples,
    make_host,
    make_request,
    make_trained_host,
    train,
    weights_of,
)


def _gradient(host: Host, model_id: str = "m") -> torch.Tensor | None:
    """The gradient that is there, as one vector."""
    parameters = host._learners[model_id].lora.parameters().values()
    if all(parameter.grad is None for parameter in parameters):
        return None
    return torch.cat([parameter.grad.flatten().clone() for parameter in parameters if parameter.grad is not None])


def _plain_logprobs(model: Any, example: Example) -> torch.Tensor:
    logits = model(input_ids=torch.from_numpy(example.tokens)[None], use_cache=False).logits[0]
    targets = torch.from_numpy(example.targets.reshape(len(example.tokens), -1))
    return torch.log_softmax(logits, -1).gather(1, targets).reshape(example.targets.shape)


Result = tuple[ForwardBackwardResult, torch.Tensor | None]


def _assert_same(found: Result, expected: Result) -> None:
    """Check that log-probs and gradients are the same up to rounding."""
    (result, gradient), (whole, whole_gradient) = found, expected
    assert gradient is not None
    assert whole_gradient is not None
    assert (gradient - whole_gradient).norm() < 1e-5 * whole_gradient.norm()
    assert result.metrics["loss:sum"] == pytest.approx(whole.metrics["loss:sum"], rel=1e-5)
    for one, other in zip(result.logprobs, whole.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)


def _with(request: ForwardBackward, index: int, **changes: Any) -> ForwardBackward:
    examples = list(request.examples)
    examples[index] = replace(examples[index], **changes)
    return replace(request, examples=tuple(examples))


@pytest.mark.parametrize("many", [None, 3])
def test_log_probs_equal_a_plain_forward_pass(many: int | None, host: Host) -> None:
    request = make_request("cross_entropy", (5, 30, 1, 12), many=many)
    train(host, "m", request)
    result = host.forward_backward("m", request)
    total = 0.0
    for example, logprobs in zip(request.examples, result.logprobs, strict=True):
        assert logprobs.dtype == np.float32
        assert logprobs.shape == example.targets.shape
        expected = _plain_logprobs(host._learners["m"].lora.model, example).detach().numpy()
        np.testing.assert_allclose(logprobs, expected, atol=1e-5, rtol=0)
        total -= float((expected * example.inputs["weights"]).sum())
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-4)


def test_examples_with_different_numbers_of_targets_go_together(host: Host) -> None:
    examples = (*make_examples((4,), "cross_entropy", many=2), *make_examples((9,), "cross_entropy", many=5))
    result = host.forward_backward("m", ForwardBackward(loss="cross_entropy", config={}, examples=examples))
    assert [logprobs.shape for logprobs in result.logprobs] == [(4, 2), (9, 5)]


@pytest.mark.parametrize("loss", ["cross_entropy", "gspo"])
def test_results_do_not_depend_on_micro_batches(loss: str) -> None:
    request = make_request(loss, (3, 40, 7, 7, 22, 1, 15))
    results = []
    for max_tokens in (100_000, 50, 1):
        host = make_trained_host(max_tokens_per_microbatch=max_tokens)
        results.append((host.forward_backward("m", request), _gradient(host)))
    for cut in results[1:]:
        _assert_same(cut, results[0])


@pytest.mark.parametrize(("build", "many"), [(build_tied_model, 3), (build_untied_model, None)])
def test_logits_of_long_example_are_computed_in_pieces(
    build: Callable[[], Any], many: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, asked = build(), make_request("cross_entropy", (40, 3, 22), many=many)
    results = []
    for most in (learner.MAX_LOGITS, 7 * base.get_input_embeddings().num_embeddings + 1):
        monkeypatch.setattr(learner, "MAX_LOGITS", most)
        host = make_trained_host(model=base)
        widths: list[int] = []
        outputs = host._learners["m"].lora.model.get_output_embeddings()
        outputs.register_forward_hook(
            lambda module, given, logits, widths=widths: widths.append(logits[..., 0].numel())
        )
        host.forward_backward("m", replace(asked, forward_only=True))
        results.append((host.forward_backward("m", asked), _gradient(host)))
    assert max(widths) == 7
    _assert_same(results[1], results[0])


def test_example_with_many_targets_is_not_padded() -> None:
    long, deep = make_examples((512,), "cross_entropy"), make_examples((1,), "cross_entropy", many=100_000)
    batches = list(example_batches((*long, *deep, *long), 4096, torch.device("cpu")))
    assert [batch.members for batch in batches] == [(1,), (0, 2)]
    assert [batch.targets.shape for batch in batches] == [(1, 1, 100_000), (2, 512, 1)]


def test_gradients_of_requests_add_up_until_a_step(host: Host) -> None:
    first, second = make_request("ppo"), make_request("cross_entropy", seed=9)
    gradients = []
    for request in (first, second):
        host.forward_backward("m", request)
        gradients.append(_gradient(host))
        host._learners["m"].adam.drop_gradient()
    host.forward_backward("m", first)
    host.forward_backward("m", second)
    total = _gradient(host)
    assert total is not None
    torch.testing.assert_close(total, gradients[0] + gradients[1])
    norm = host.optim_step("m", STEP)["grad_norm"]
    assert norm == pytest.approx(total.norm().item(), rel=1e-5)
    assert _gradient(host) is None


def test_a_forward_pass_leaves_no_gradient(host: Host) -> None:
    expected = host.forward_backward("m", make_request(seed=3))
    gradient = _gradient(host)
    result = host.forward_backward("m", make_request(seed=3, forward_only=True))
    assert result.metrics == expected.metrics
    np.testing.assert_array_equal(np.concatenate(result.logprobs), np.concatenate(expected.logprobs))
    torch.testing.assert_close(_gradient(host), gradient, atol=0, rtol=0)


def _passes(host: Host, model_id: str = "m") -> list[int]:
    """A list that gets an entry at each forward pass of a model."""
    passes: list[int] = []
    host._learners[model_id].lora.model.register_forward_pre_hook(lambda *_: passes.append(1))
    return passes


@pytest.mark.parametrize("loss", ["cross_entropy", "ppo"])
def test_gradient_after_log_probs_reuses_their_pass(loss: str, host: Host) -> None:
    """The log-probs, the gradient and the metrics have the bits of two separate passes."""
    request = make_request(loss)
    scored = replace(make_request("cross_entropy"), forward_only=True)
    train(host, "m", request)
    model, learner_ = host._learners["m"].lora.model, host._learners["m"]
    with torch.no_grad():
        (batch,) = example_batches(scored.examples, 100_000, model.device)
        by_member = dict(zip(batch.members, batch.split(batch.logprobs(model, 100_000)), strict=True))
    plain = host.forward_backward("m", request)
    plain_gradient = _gradient(host)
    learner_.adam.drop_gradient()
    passes = _passes(host)
    found = host.forward_backward("m", scored)
    assert _gradient(host) is None
    result = host.forward_backward("m", request)
    assert len(passes) == 1
    for index, (logprobs, again) in enumerate(zip(found.logprobs, result.logprobs, strict=True)):
        separate = by_member[index]
        np.testing.assert_array_equal(logprobs, separate)
        np.testing.assert_array_equal(again, separate)
    assert result.metrics == plain.metrics
    assert torch.equal(_gradient(host), plain_gradient)  # type: ignore[arg-type]
    host.forward_backward("m", request)
    assert len(passes) == 2


def test_changed_weights_or_tokens_need_a_new_pass(host: Host, tmp_path: Path) -> None:
    request = make_request("cross_entropy")
    scored = replace(request, forward_only=True)
    host.save_state("m", tmp_path, optimizer=True)
    passes = _passes(host)
    for change in (
        lambda: host.optim_step("m", STEP),
        lambda: host.load_state("m", tmp_path, optimizer=True),
        lambda: host.forward_backward("m", make_request("cross_entropy", seed=1)),
    ):
        host.forward_backward("m", scored)
        change()
        before = len(passes)
        found = host.forward_backward("m", request)
        assert len(passes) == before + 1
        (expected, *_) = request.examples
        plain = _plain_logprobs(host._learners["m"].lora.model, expected).detach().numpy()
        np.testing.assert_allclose(found.logprobs[0], plain, atol=1e-5, rtol=0)


def test_only_one_small_pass_is_stored() -> None:
    request = make_request("cross_entropy", forward_only=True)
    host = make_host()
    for name in ("m", "other"):
        host.create(name, LoraSpec(rank=4, seed=1))
        host.forward_backward(name, request)
    assert [each._pass is not None for each in host._learners.values()] == [False, True]
    cut = make_host(max_tokens_per_microbatch=20)
    cut.create("m", LoraSpec(rank=4, seed=1))
    cut.forward_backward("m", request)
    assert cut._learners["m"]._pass is None


def test_step_equals_adamw_on_the_clipped_gradient(host: Host) -> None:
    host.forward_backward("m", make_request())
    gradient, before = _gradient(host), weights_of(host, "m")
    assert gradient is not None
    step = AdamStep(learning_rate=0.03, beta1=0.5, beta2=0.7, eps=1e-3, weight_decay=0.1, grad_clip_norm=0.25)
    norm = host.optim_step("m", step)["grad_norm"]
    assert norm == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert norm > 0.25
    clipped = gradient * 0.25 / norm
    # In the first step both moments, corrected for their bias, are the gradient and its square.
    expected = before * (1 - 0.03 * 0.1) - 0.03 * clipped / (clipped.abs() + 1e-3)
    torch.testing.assert_close(weights_of(host, "m"), expected, atol=1e-6, rtol=1e-4)


def test_a_step_without_a_gradient_changes_nothing(host: Host) -> None:
    train(host, "m", make_request())
    before, state = (
        weights_of(host, "m"),
        {key: value.clone() for key, value in host._learners["m"].adam.state().items()},
    )
    assert host.optim_step("m", STEP) == {"grad_norm": 0.0}
    assert torch.equal(weights_of(host, "m"), before)
    assert all(torch.equal(value, state[key]) for key, value in host._learners["m"].adam.state().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": np.nan}, "learning_rate is nan"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"learning_rate": 1e38}, r"learning_rate is 1e\+38. Float32"),
        ({"beta2": 1.0}, "beta2 is 1.0. .* below 1"),
        ({"eps": 0.0}, r"eps is 0.0.*above 0"),
        ({"weight_decay": np.inf}, "weight_decay is inf"),
        ({"grad_clip_norm": -1.0}, "grad_clip_norm is -1.0"),
    ],
)
def test_invalid_step_settings_are_rejected_and_gradient_stays(
    changes: dict[str, float], message: str, shared_host: Host
) -> None:
    shared_host.forward_backward("m", make_request())
    gradient = _gradient(shared_host)
    with pytest.raises(RequestError, match=message):
        shared_host.optim_step("m", replace(STEP, **changes))
    torch.testing.assert_close(_gradient(shared_host), gradient, atol=0, rtol=0)


def test_infinite_gradient_is_dropped_and_weights_stay(host: Host) -> None:
    train(host, "m", make_request())
    before = weights_of(host, "m")
    huge = make_request("cross_entropy", (6,))
    # Each loss is finite, and so is their sum; the gradient's norm is not.
    huge = _with(huge, 0, inputs={"weights": np.array([1e37, -1e37] * 3, np.float32)})
    host.forward_backward("m", huge)
    with pytest.raises(RequestError, match="gradient"):
        host.optim_step("m", STEP)
    assert _gradient(host) is None
    assert torch.equal(weights_of(host, "m"), before)
    train(host, "m", make_request())
    assert torch.isfinite(weights_of(host, "m")).all()


def test_infinite_weights_after_huge_step_are_not_saved(host: Host, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir(), bad.mkdir()
    train(host, "m", make_request())
    host.save_state("m", good, optimizer=True)
    before = weights_of(host, "m")
    host.forward_backward("m", make_request())
    host.optim_step("m", replace(STEP, learning_rate=3.4e38, weight_decay=1.0, beta1=0.0))
    assert not torch.isfinite(weights_of(host, "m")).all()
    with pytest.raises(RequestError, match=r"step 2 with learning_rate=3\.4e\+38"):
        host.save_state("m", bad, optimizer=True)
    assert not list(bad.iterdir())
    host.load_state("m", good, optimizer=True)
    assert torch.equal(weights_of(host, "m"), before)
    host.save_state("m", bad, optimizer=True)


def test_a_loss_that_is_not_finite_adds_nothing() -> None:
    host = make_trained_host(max_tokens_per_microbatch=10)
    host.forward_backward("m", make_request())
    gradient = _gradient(host)
    request = make_request("cross_entropy", (4, 5, 6))
    # The longest is computed last: the others have given their gradient by then.
    request = _with(request, 2, inputs={"weights": np.full(6, 3e38, np.float32)})
    with pytest.raises(RequestError, match="Datum 2: the loss cross_entropy is not finite"):
        host.forward_backward("m", request)
    torch.testing.assert_close(_gradient(host), gradient, atol=0, rtol=0)


def test_exception_in_the_middle_keeps_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_trained_host(max_tokens_per_microbatch=10)
    host.forward_backward("m", make_request())
    gradient, model = _gradient(host), host._learners["m"].lora.model
    passes = iter([model.forward, model.forward])
    monkeypatch.setattr(model, "forward", lambda **inputs: next(passes)(**inputs))
    with pytest.raises(StopIteration):
        host.forward_backward("m", make_request(lengths=(9, 9, 9, 9)))
    monkeypatch.undo()
    torch.testing.assert_close(_gradient(host), gradient, atol=0, rtol=0)
    assert torch.is_grad_enabled()


IDS = np.array([5, 6, 7])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.array([], np.int64), "targets": np.array([], np.int64)}, "input.* tokens"),
        ({"tokens": np.ones((2, 2), np.int64)}, r"shape \(2, 2\)"),
        ({"tokens": np.zeros(513, np.int64), "targets": np.zeros(513, np.int64)}, "513 tokens.* 512"),
        ({"tokens": np.array([5, 900, 7])}, "token 900.* 0 to"),
        ({"targets": np.array([5, -100, 7])}, "target_tokens.* -100"),
        ({"targets": IDS[:2]}, r"target_tokens.*\(2,\).* 3 tokens"),
        ({"targets": np.ones((3, 2), np.int64)}, "ppo.* position"),
        ({"inputs": {"advantages": np.zeros(3, np.float32)}}, "logprobs is missing.* target_tokens"),
        ({"inputs": {"mask": None}}, "advantages is missing"),
        ({"inputs": {"logprobs": np.zeros(2, np.float32)}}, r"logprobs.*\(2,\).*target_tokens.*\(3,\)"),
        ({"inputs": {"advantages": np.array([0, np.nan, np.inf], np.float32)}}, "advantages.* 2 values.* NaN"),
    ],
)  # fmt: skip
def test_bad_data_is_refused_with_the_datum_named(changes: dict[str, Any], message: str, shared_host: Host) -> None:
    before = _gradient(shared_host)
    request = make_request("ppo", (4, 3))
    full = {**request.examples[1].inputs}
    if "inputs" in changes and len(changes["inputs"]) == 1 and "missing" not in message:
        changes = {"inputs": full | changes["inputs"]}
    with pytest.raises(RequestError, match=f"^Datum 1: .*{message}"):
        shared_host.forward_backward("m", _with(request, 1, **changes))
    torch.testing.assert_close(_gradient(shared_host), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("loss", "inputs", "message"),
    [
        ("ppo", {"mask": np.ones(3, np.float32)}, "ppo.*'mask'.*target_tokens, advantages, logprobs"),
        ("ppo", {"weights": np.ones(3, np.float32)}, "ppo.*'weights'.*target_tokens, advantages, logprobs"),
        ("gspo", {"sequence_ratio_mask": np.zeros(3, np.float32)}, "Datum 0: sequence_ratio_mask marks no position"),
    ],
)
def test_inputs_that_mismatch_the_loss_are_rejected(
    loss: str, inputs: dict[str, Any], message: str, shared_host: Host
) -> None:
    request = make_request(loss, (3,))
    with pytest.raises(RequestError, match=message):
        shared_host.forward_backward("m", _with(request, 0, inputs={**request.examples[0].inputs, **inputs}))


def test_a_request_without_data_is_refused(shared_host: Host) -> None:
    with pytest.raises(RequestError, match="without data"):
        shared_host.forward_backward("m", ForwardBackward(loss="ppo", config={}, examples=()))


def test_context_can_be_smaller_than_the_models() -> None:
    host = make_host(max_context=10)
    host.create("m", LoraSpec(rank=2))
    host.forward_backward("m", make_request(lengths=(10,)))
    with pytest.raises(RequestError, match=r"11 tokens.* 10 "):
        host.forward_backward("m", make_request(lengths=(11,)))
    with expect_error(ConfigError, "context-too-long", 513, 512):
        make_host(max_context=513)


def test_ids_of_lora_models_are_taken_and_free(host: Host) -> None:
    with pytest.raises(RequestError, match="a LoRA model 'm' already"):
        host.create("m", LoraSpec(rank=2))
    host.release("m")
    host.release("m")
    with pytest.raises(RequestError, match="no LoRA model 'm' here"):
        host.forward_backward("m", make_request())
    host.create("m", LoraSpec(rank=2))


def test_bfloat16_models_adapters_follow_float32_adamw() -> None:
    """With gradients of two requests, added up in float32, and a learning rate that bfloat16 weights would not feel."""
    host = make_host(build_tied_model().to(torch.bfloat16))
    host.create("m", LoraSpec(rank=4, seed=1))
    learner_of_m = host._learners["m"]
    trained = list(learner_of_m.lora.parameters().values())
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in trained]
    step = AdamStep(learning_rate=2e-5, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    expected = torch.optim.AdamW(copies, lr=2e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    begun = [copy.detach().clone() for copy in copies]
    for number in range(6):
        for half in (0, 1):
            host.forward_backward("m", make_request("cross_entropy", (5, 12), seed=2 * number + half))
        for copy, parameter in zip(copies, trained, strict=True):
            assert parameter.grad is not None
            copy.grad = parameter.grad.clone()
        host.optim_step("m", step)
        expected.step()
    assert all(torch.equal(*pair) for pair in zip(trained, copies, strict=True))
    assert {value.dtype for value in learner_of_m.adam.state().values()} == {torch.float32}
    moved = [float((copy != start).float().mean()) for copy, start in zip(copies, begun, strict=True)]
    assert min(moved) > 0.9
