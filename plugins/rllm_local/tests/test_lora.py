"""LoRA: an adapter that is peft's, over a model that does not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from expecting import expect_error
from local_models import fill_columns, make_plan, random_batch

from rllm_core.contracts.backend import KlTerm
from rllm_core.errors import CheckpointError, ConfigError
from rllm_local import tiny
from rllm_local.lora import Adapter
from rllm_local.master_weights import MasterWeights
from rllm_local.model import LoadedModel, load_model, load_model_to_train
from rllm_local.model_name import check_model
from rllm_local.reference import AdapterBaseReference, Reference
from rllm_local.samplers import checkpoint_weights
from rllm_local.settings import LocalConfig, ModelSection, TrainedModelSection, TrainingSection
from rllm_local.trainer import load_state, save_state
from rllm_local.update import Updater
from rllm_local.weights import fingerprint

ROWS = [(2 + row, 1 + row % 4) for row in range(9)]
IDS = torch.arange(6, 40)[None]


def load(**settings: Any) -> tuple[LoadedModel, MasterWeights]:
    return load_model_to_train(TrainedModelSection(**({"device": "cpu", "lora_rank": 4} | settings)), 0)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS).logits


def adapter_of(loaded: LoadedModel) -> Adapter:
    assert loaded.adapter is not None
    return loaded.adapter


@pytest.fixture
def make() -> Callable[..., Any]:
    """A loaded model with an adapter, its updater, and what makes `steps` updates."""

    def build(**settings: Any) -> tuple[LoadedModel, Updater, Callable[[range], list[dict[str, float]]]]:
        loaded, masters = load(**settings)
        section = TrainingSection(learning_rate=1e-2, num_minibatches=2, weight_decay=0.01)
        updater = Updater(
            loaded.model, section, total_steps=9, temperature=1.0, max_response_length=50, masters=masters
        )

        def train(steps: range) -> list[dict[str, float]]:
            return [updater.update(random_batch(ROWS, seed=n), make_plan(global_step=n, seed=n)).metrics for n in steps]

        return loaded, updater, train

    return build


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_changes_only_the_adapter(dtype: str, make: Callable[..., Any]) -> None:
    loaded, updater, train = make(dtype=dtype)
    plain = load_model(ModelSection(device="cpu", dtype=dtype), 0).model  # type: ignore[arg-type]
    assert torch.equal(logits(loaded.model), logits(plain))
    before = fingerprint(loaded.model)
    assert before == fingerprint(plain)
    metrics = train(range(3))
    assert all(each["actor/grad_norm"] > 0 for each in metrics)
    assert not torch.equal(logits(loaded.model), logits(plain))
    assert fingerprint(loaded.model) == before
    assert {parameter.dtype for parameter in updater.masters} == {torch.float32}
    assert all(".lora_" in name for name, _ in updater.masters.named_parameters())
    assert {str(p.dtype) for n, p in loaded.model.named_parameters() if ".lora_" not in n} == {f"torch.{dtype}"}


def test_the_adapter_depends_only_on_its_seed() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    everywhere = adapter_of(load()[0]).state_dict()
    assert torch.equal(torch.rand(3), expected)
    some = adapter_of(load(lora_target_modules=["q_proj", "v_proj"])[0]).state_dict()
    assert len(some) == 8
    assert all(torch.equal(everywhere[name], tensor) for name, tensor in some.items())
    other, _ = load_model_to_train(TrainedModelSection(device="cpu", lora_rank=4), 1)
    other_seed = adapter_of(other).state_dict()
    assert not any(torch.equal(everywhere[name], other_seed[name]) for name in everywhere if "lora_A" in name)


def test_the_reference_is_the_model_without_its_adapter(make: Callable[..., Any]) -> None:
    loaded, updater, train = make()
    reference = AdapterBaseReference(adapter_of(loaded))
    copied = Reference(load_model(ModelSection(device="cpu"), 0).model)
    train(range(3))
    adapted = logits(loaded.model)
    batch = random_batch(ROWS)
    found, expected = (
        fill_columns(loaded.model, batch, "ref_logprobs", reference=each) for each in (reference, copied)
    )
    assert found.ref_logprobs.tolist() == expected.ref_logprobs.tolist()
    assert found.ref_logprobs.tolist() != found.old_logprobs.tolist()
    assert torch.equal(logits(loaded.model), adapted), "switched on again"
    metrics = updater.update(found, make_plan(kl=KlTerm(beta=0.1, estimator="k3"))).metrics
    assert metrics["actor/kl_ref"] > 0
    assert metrics["actor/grad_norm"] > 0


def test_hosted_engines_are_given_merged_weights(make: Callable[..., Any]) -> None:
    loaded, _, train = make()
    train(range(3))
    given = checkpoint_weights(loaded.model, loaded.adapter)
    plain = load_model(ModelSection(device="cpu"), 1).model
    missing, unexpected = plain.load_state_dict(given, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), "tied to the embedding, and given once"
    torch.testing.assert_close(logits(plain), logits(loaded.model), rtol=1e-5, atol=1e-5)


@pytest.fixture
def base(tmp_path: Path, tokenizer: Any) -> Path:
    directory = tmp_path / "base"
    tiny.build_model(len(tokenizer), 3).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def trained_adapter(tmp_path: Path, base: Path, make: Callable[..., Any]) -> tuple[Path, torch.Tensor]:
    """The directory of an adapter over `base`, and the logits of the model with it."""
    loaded, updater, train = make(name=str(base))
    train(range(3))
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "backend").mkdir()
    save_state(
        tmp_path / "step" / "backend", updater.masters, loaded.tokenizer, updater.optimizer, adapter=loaded.adapter
    )
    return tmp_path / "step", logits(loaded.model)


def test_adapter_directory_is_a_valid_model_name(trained_adapter: tuple[Path, torch.Tensor]) -> None:
    directory, expected = trained_adapter
    merged = load_model(ModelSection(name=str(directory), device="cpu"), 0)
    torch.testing.assert_close(logits(merged.model), expected, rtol=1e-5, atol=1e-5)
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
    whole, masters = load(name=str(directory), lora_rank=0)
    assert torch.equal(logits(whole.model), logits(merged.model))
    assert len(list(masters)) == len(list(whole.model.parameters()))
    continued, _ = load(name=str(directory))
    assert torch.equal(logits(continued.model), expected)
    assert continued.continues_adapter
    assert adapter_of(continued).base.name.endswith("base"), "of the model below, not of the adapter"


def test_adapter_with_different_shape_is_rejected(trained_adapter: tuple[Path, torch.Tensor]) -> None:
    with pytest.raises(ConfigError, match=r"does not match model\.lora_rank"):
        load(name=str(trained_adapter[0]), lora_rank=2)


def test_adapter_with_missing_or_changed_model_is_rejected(
    base: Path, trained_adapter: tuple[Path, torch.Tensor]
) -> None:
    directory = trained_adapter[0]
    config = LocalConfig(model=TrainedModelSection(name=str(directory)))
    check_model(config)
    other = load_model(ModelSection(name=str(base), device="cpu"), 0).model
    with torch.no_grad():
        next(other.parameters())[0, 0] += 0.5
    other.save_pretrained(base)
    with expect_error(ConfigError, "adapter-base-changed", directory):
        load_model(ModelSection(name=str(directory), device="cpu"), 0)
    base.rename(base.parent / "elsewhere")
    for ask in (lambda: check_model(config), lambda: load_model(ModelSection(name=str(directory)), 0)):
        with expect_error(ConfigError, "model-not-loadable", directory, base):
            ask()


@pytest.mark.parametrize("targets", [["lm_head"], ["embed_tokens"], ["nothing"]])
def test_layers_that_cannot_have_an_adapter_are_refused(targets: list[str]) -> None:
    with pytest.raises(ConfigError, match="cannot be adapted"):
        load(lora_target_modules=targets)


def test_lora_without_peft_names_the_line_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_local.model_name.find_spec", lambda name: None)
    check_model(LocalConfig())
    values = ("`model.lora_rank`", 8, "peft", "pip install 'rllm-local[lora]'")
    with expect_error(ConfigError, "missing-package", *values):
        check_model(LocalConfig(model=TrainedModelSection(lora_rank=8)))


def test_unused_lora_keys_are_rejected() -> None:
    with expect_error(ConfigError, "unused-key", "`model.lora_alpha`", 16.0):
        check_model(LocalConfig(model=TrainedModelSection(lora_alpha=16)))


def test_peft_loads_checkpoint_with_equal_logits_and_gradients(make: Callable[..., Any], tmp_path: Path) -> None:
    loaded, updater, train = make(lora_alpha=10, lora_target_modules=["q_proj", "down_proj"])
    train(range(2))
    save_state(tmp_path, updater.masters, loaded.tokenizer, updater.optimizer, adapter=loaded.adapter)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert "config.json" not in names
    plain = load_model(ModelSection(device="cpu"), 0).model
    theirs = peft.PeftModel.from_pretrained(plain, str(tmp_path / "model"), is_trainable=True).eval()
    torch.testing.assert_close(logits(theirs), logits(loaded.model), rtol=0, atol=0)
    assert theirs.peft_config["default"].lora_alpha == 10
    for model in (loaded.model, theirs):
        model.zero_grad()
        torch.log_softmax(model(input_ids=IDS).logits[0, :-1], -1).gather(1, IDS[0, 1:, None]).mean().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.requires_grad}
    ours = {f"base_model.model.{name}": p.grad for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert ours.keys() == gradients.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-6, atol=1e-9)
    assert not any(p.grad is not None for p in loaded.model.parameters() if not p.requires_grad)


WHOLE = {"lora_rank": 0, "lora_alpha": 32}


@pytest.mark.parametrize(
    ("saved", "settings", "value"),
    [
        ({}, WHOLE, "model.lora_rank"),
        ({}, {"lora_rank": 8}, "ranks"),
        ({}, {"lora_alpha": 16}, "lora_alpha is 32"),
        ({}, {"dtype": "bfloat16"}, "model.dtype"),
        (WHOLE, {}, "model.lora_rank"),
    ],
)
def test_checkpoint_of_another_shape_is_refused(
    saved: dict[str, Any], settings: dict[str, Any], value: str, tmp_path: Path, make: Callable[..., Any]
) -> None:
    loaded, updater, _ = make(**saved)
    save_state(tmp_path, updater.masters, loaded.tokenizer, updater.optimizer, adapter=loaded.adapter)
    other, updater, _ = make(**settings)
    with expect_error(CheckpointError, "checkpoint-of-other-model", tmp_path, value):
        load_state(tmp_path, updater.masters, updater.optimizer, adapter=other.adapter)
