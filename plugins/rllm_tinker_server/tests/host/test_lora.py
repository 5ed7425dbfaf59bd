"""Adapters: where they go, what they start from, and that nothing but the adapter changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rllm_tinker_server.host import Host
from rllm_tinker_server.lora import ALPHA, LoraModel, merged_copy, target_names
from rllm_tinker_server.messages import LoraSpec, RequestError

from .conftest import build_tied_model, build_untied_model, make_host, make_request, train, weights_of

IDS = torch.tensor([[5, 9, 31, 4, 4, 60, 12]])
ALL = LoraSpec(rank=4, seed=0)


def _logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def _randomize(base: Any, spec: LoraSpec, seed: int = 0) -> LoraModel:
    """An adapter that does something, as after training."""
    lora = LoraModel(base, spec)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in lora.parameters().values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return lora


@pytest.mark.parametrize(
    ("flag", "suffixes"),
    [
        ("train_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("train_mlp", ("gate_proj", "up_proj", "down_proj")),
        ("train_unembed", ("lm_head",)),
    ],
)
def test_each_flag_adapts_its_layers(flag: str, suffixes: tuple[str, ...]) -> None:
    flags = {"train_attn": False, "train_mlp": False, "train_unembed": False, flag: True}
    names = target_names(build_untied_model(), LoraSpec(rank=4, **flags))
    assert {name.rpartition(".")[2] for name in names} == set(suffixes)
    assert len(names) == (1 if flag == "train_unembed" else 2 * len(suffixes))


@pytest.mark.parametrize(
    ("family", "attention", "mlp"),
    [
        ("GPTNeoX", {"query_key_value", "dense"}, {"dense_h_to_4h", "dense_4h_to_h"}),
        ("OPT", {"q_proj", "k_proj", "v_proj", "out_proj"}, {"fc1", "fc2"}),
        ("Phi3", {"qkv_proj", "o_proj"}, {"gate_up_proj", "down_proj"}),
    ],
)
def test_other_families_are_told_by_their_structure(family: str, attention: set[str], mlp: set[str]) -> None:
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    sizes |= {"ffn_dim": 32, "word_embed_proj_dim": 12} if family == "OPT" else {"intermediate_size": 32}
    config = getattr(transformers, f"{family}Config")(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for flags, leaves in (({"train_mlp": False}, attention), ({"train_attn": False}, mlp)):
        names = target_names(model, LoraSpec(rank=1, train_unembed=False, **flags))
        assert {name.rpartition(".")[2] for name in names} == leaves


def test_a_choice_that_matches_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="train_unembed"):
        target_names(build_tied_model(), LoraSpec(rank=4, train_attn=False, train_mlp=False, train_unembed=False))
    model = build_tied_model()
    for layer in model.model.layers:
        layer.mlp = nn.Identity()
    with pytest.raises(RequestError, match="train_mlp"):
        target_names(model, ALL)


def test_fused_experts_are_rejected_but_other_layers_train() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(
        MixtralConfig(
            vocab_size=20, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, num_local_experts=2,
        )
    )  # fmt: skip
    with pytest.raises(RequestError, match=r"experts.*train_mlp=False"):
        target_names(model, ALL)
    names = target_names(model, LoraSpec(rank=4, train_mlp=False))
    assert {name.rpartition(".")[2] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj", "lm_head"}


@pytest.mark.parametrize("rank", [0, 1025])
def test_a_rank_that_cannot_be_is_refused(rank: int) -> None:
    with pytest.raises(RequestError, match=f"rank of {rank}.*1 to 1024"):
        LoraModel(build_tied_model(), LoraSpec(rank=rank))


def test_the_initial_weights_are_those_of_the_seed() -> None:
    base = build_tied_model()
    first, again, other, unseeded = (LoraModel(base, LoraSpec(rank=4, seed=seed)) for seed in (7, 7, 8, None))
    a = [name for name in first.parameters() if "lora_A" in name]
    for name in a:
        weight = first.parameters()[name]
        assert torch.equal(weight, again.parameters()[name])
        assert not torch.equal(weight, other.parameters()[name])
        # Kaiming's bound for a = sqrt(5): uniform within 1 / sqrt(n_in).
        bound = weight.shape[1] ** -0.5
        assert 0.9 * bound < float(weight.detach().abs().max()) <= bound
    assert unseeded.spec.seed is not None
    assert all(not parameter.any() for name, parameter in first.parameters().items() if "lora_B" in name)


def test_making_a_lora_model_keeps_global_random_state() -> None:
    base, before = build_tied_model(), torch.get_rng_state()
    LoraModel(base, ALL)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_float32_adapters_are_trained(dtype: torch.dtype) -> None:
    base = build_tied_model().to(dtype).requires_grad_(False)
    lora = LoraModel(base, ALL)
    assert {parameter.dtype for parameter in lora.parameters().values()} == {torch.float32}
    trained = {id(each) for each in lora.model.parameters() if each.requires_grad}
    assert trained == {id(each) for each in lora.parameters().values()}
    lora.model(input_ids=IDS, use_cache=False).logits.float().sum().backward()
    assert all(parameter.grad is not None for parameter in lora.parameters().values())


def test_layer_change_is_alpha_over_rank_times_ba() -> None:
    base = build_untied_model()
    lora = _randomize(base, LoraSpec(rank=4, seed=0, train_attn=False, train_mlp=False))
    hidden = torch.randn(3, 32)
    down, up = lora.parameters().values()
    expected = base.lm_head(hidden) + ALPHA / 4 * hidden @ down.T @ up.T
    torch.testing.assert_close(lora.model.lm_head(hidden), expected)


@pytest.mark.parametrize(
    ("build", "train_unembed"), [(build_tied_model, True), (build_untied_model, True), (build_tied_model, False)]
)
def test_a_merged_model_answers_as_the_adapted_one(build: Callable[[], Any], train_unembed: bool) -> None:
    base = build()
    lora = _randomize(base, LoraSpec(rank=4, seed=0, train_unembed=train_unembed))
    merged = merged_copy(base, lora.weights())
    torch.testing.assert_close(_logits(merged), _logits(lora.model), atol=1e-4, rtol=1e-5)
    assert not torch.allclose(_logits(merged), _logits(base), atol=0.1)


def test_small_changes_reach_merged_bfloat16_model() -> None:
    base = build_untied_model().to(torch.bfloat16)
    lora = _randomize(base, ALL)
    with torch.no_grad():
        for parameter in lora.parameters().values():
            parameter.mul_(0.03)
    merged = merged_copy(base, lora.weights())
    for name, factors in lora.weights().factors.items():
        before = base.get_submodule(name).weight.float()
        change = (merged.get_submodule(name).weight - before).flatten()
        torch.testing.assert_close(change, (factors.up @ factors.down * ALPHA / 4).flatten(), atol=1e-7, rtol=1e-3)
    found, expected = _logits(merged), _logits(lora.model)
    assert found.dtype == expected.dtype == merged.dtype == torch.bfloat16
    assert (found.float() - expected.float()).norm() < 0.02 * expected.float().norm()


def test_merged_model_shares_all_unadapted_tensors() -> None:
    base = build_untied_model()
    lora = _randomize(base, LoraSpec(rank=4, seed=0, train_mlp=False, train_unembed=False))
    merged = dict(merged_copy(base, lora.weights()).named_parameters())
    for name, parameter in base.named_parameters():
        assert (merged[name] is parameter) == ("self_attn" not in name or "norm" in name)


def test_adapting_a_tied_output_keeps_input_embeddings() -> None:
    base = build_tied_model()
    embedding = base.get_input_embeddings().weight
    before = embedding.detach().clone()
    lora = _randomize(base, LoraSpec(rank=4, seed=0, train_attn=False, train_mlp=False))
    merged = merged_copy(base, lora.weights())
    assert merged.get_input_embeddings().weight is embedding
    assert lora.model.get_input_embeddings().weight is embedding
    assert not torch.equal(merged.get_output_embeddings().weight, embedding)
    assert torch.equal(embedding, before)
    assert base.get_output_embeddings().weight is embedding
    assert base.config.tie_word_embeddings


def test_training_leaves_the_base_model_as_it_was() -> None:
    host = make_host()
    before = {name: tensor.clone() for name, tensor in host.model.state_dict().items()}
    expected = _logits(host.model)
    host.create("m", LoraSpec(rank=8, seed=1))
    train(host, "m", make_request(), 3)
    assert host.model.state_dict().keys() == before.keys()
    assert all(torch.equal(host.model.state_dict()[name], tensor) for name, tensor in before.items())
    assert torch.equal(_logits(host.model), expected)


def test_interleaved_lora_models_learn_as_separate_ones() -> None:
    specs = {"a": LoraSpec(rank=8, seed=1), "b": LoraSpec(rank=3, seed=2, train_mlp=False)}
    requests = {"a": make_request("ppo"), "b": make_request("cross_entropy", seed=5)}
    together = make_host()
    for name, spec in specs.items():
        together.create(name, spec)
    for _ in range(3):
        for name in specs:
            train(together, name, requests[name])
    for name, spec in specs.items():
        separate = make_host()
        separate.create(name, spec)
        train(separate, name, requests[name], 3)
        assert torch.equal(weights_of(separate, name), weights_of(together, name))


def test_a_snapshot_does_not_follow_later_steps(host: Host) -> None:
    train(host, "m", make_request())
    snapshot = host.weights("m")
    before = {name: (factors.down.clone(), factors.up.clone()) for name, factors in snapshot.factors.items()}
    train(host, "m", make_request())
    for name, (down, up) in before.items():
        assert torch.equal(snapshot.factors[name].down, down)
        assert torch.equal(snapshot.factors[name].up, up)
