"""Saved LoRA models: exact resume, what peft reads of them, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rllm_local.model import load_model
from rllm_local.settings import TrainedModelSection
from rllm_tinker_server.host import Host
from rllm_tinker_server.messages import LoraSpec, RequestError

from .conftest import STEP, build_tied_model, build_untied_model, make_host, make_request, train, weights_of


@pytest.fixture
def saved(host: Host, tmp_path: Path) -> Path:
    """A model after two steps, with its optimizer."""
    train(host, "m", make_request(), 2)
    directory = tmp_path / "saved"
    directory.mkdir()
    host.save_state("m", directory, optimizer=True)
    return directory


@pytest.fixture(scope="module")
def valid_checkpoint(shared_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for tests of copies."""
    train(shared_host, "m", make_request())
    directory = tmp_path_factory.mktemp("saved")
    shared_host.save_state("m", directory, optimizer=True)
    return directory


def test_resumed_model_equals_uninterrupted_model_bit_for_bit(host: Host, saved: Path) -> None:
    fresh = make_host()
    fresh.load_state("again", saved, optimizer=True)
    assert torch.equal(weights_of(fresh, "again"), weights_of(host, "m"))
    train(host, "m", make_request(seed=4), 3)
    train(fresh, "again", make_request(seed=4), 3)
    assert torch.equal(weights_of(fresh, "again"), weights_of(host, "m"))


def test_loading_restores_existing_model_and_drops_its_gradient(host: Host, saved: Path) -> None:
    at_saving = weights_of(host, "m")
    train(host, "m", make_request(seed=4))
    after = weights_of(host, "m")
    host.forward_backward("m", make_request(seed=8))
    host.load_state("m", saved, optimizer=True)
    assert torch.equal(weights_of(host, "m"), at_saving)
    assert host.optim_step("m", STEP) == {"grad_norm": 0.0}
    train(host, "m", make_request(seed=4))
    assert torch.equal(weights_of(host, "m"), after)


def test_without_optimizer_state_adamw_starts_from_scratch(host: Host, saved: Path) -> None:
    fresh = make_host()
    fresh.load_state("again", saved, optimizer=False)
    assert torch.equal(weights_of(fresh, "again"), weights_of(host, "m"))
    train(host, "m", make_request())
    train(fresh, "again", make_request())
    assert not torch.equal(weights_of(fresh, "again"), weights_of(host, "m"))


def test_model_without_steps_can_be_saved_and_loaded(host: Host, tmp_path: Path) -> None:
    host.save_state("m", tmp_path, optimizer=True)
    host.load_state("n", tmp_path, optimizer=True)
    assert torch.equal(weights_of(host, "n"), weights_of(host, "m"))


def test_weights_for_sampling_are_those_that_were_saved(host: Host, saved: Path) -> None:
    loaded, kept = host.load_weights(saved), host.weights("m")
    assert loaded.spec == kept.spec
    assert loaded.factors.keys() == kept.factors.keys()
    for name, factors in kept.factors.items():
        assert torch.equal(loaded.factors[name].down, factors.down)
        assert torch.equal(loaded.factors[name].up, factors.up)


def test_checkpoint_has_no_pickle_and_loads_in_peft(host: Host, saved: Path) -> None:
    from peft import PeftModel

    assert {path.suffix for path in saved.iterdir()} <= {".safetensors", ".json", ".md"}
    plain = build_tied_model()
    # As whoever uses the files would: peft warns of tied weights unless it is told that they are not.
    plain.config.tie_word_embeddings = False
    adapted = PeftModel.from_pretrained(plain, str(saved))
    ids = torch.tensor([[4, 9, 30, 7]])
    with torch.inference_mode():
        expected = host.merge_weights(host.weights("m"))(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(adapted(input_ids=ids, use_cache=False).logits, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("spec", [LoraSpec(rank=4), LoraSpec(rank=8, train_mlp=False)], ids=["rank", "layers"])
def test_state_of_different_shape_is_rejected_without_changes(
    spec: LoraSpec, shared_host: Host, valid_checkpoint: Path
) -> None:
    shared_host.create("other", spec)
    before = weights_of(shared_host, "other")
    with pytest.raises(RequestError, match=r"saved.*LoRA model.* rank"):
        shared_host.load_state("other", valid_checkpoint, optimizer=True)
    assert torch.equal(weights_of(shared_host, "other"), before)
    shared_host.release("other")


def test_the_state_of_another_base_model_is_refused(saved: Path) -> None:
    other_weights = build_tied_model()
    with torch.no_grad():
        other_weights.model.norm.weight[0] += 0.5
    for model in (other_weights, build_untied_model()):
        other = make_host(model)
        message = r"saved was trained on other weights .*'tiny'.* --dtype.* --seed.* directory"
        with pytest.raises(RequestError, match=message):
            other.load_state("m", saved, optimizer=True)
        with pytest.raises(RequestError, match=message):
            other.load_weights(saved)
        with pytest.raises(RequestError, match="no LoRA model 'm'"):
            other.weights("m")


def test_the_base_model_may_have_another_name(host: Host, saved: Path) -> None:
    renamed = make_host(name="./tiny")
    renamed.load_state("m", saved, optimizer=True)
    assert torch.equal(weights_of(renamed, "m"), weights_of(host, "m"))
    renamed.load_weights(saved)


def test_a_directory_without_optimizer_cannot_resume_one(host: Host, tmp_path: Path) -> None:
    host.save_state("m", tmp_path, optimizer=False)
    with pytest.raises(RequestError, match=r"optimi[sz]er state"):
        host.load_state("n", tmp_path, optimizer=True)
    host.load_state("n", tmp_path, optimizer=False)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.json", None, "saved .*model.json"),
        ("model.json", "{", "saved .*damaged.*model.json"),
        ("model.json", "[]", "saved .*damaged.*model.json"),
        ("model.json", '{"format": 2}', "saved .*damaged.*model.json"),
        ("model.json", '{"format": 2, "base_model": "tiny"}', "saved .*damaged.*model.json"),
        ("model.json", '{"format": 99}', "saved .*format 99.*format 2"),
        ("adapter_model.safetensors", None, "saved .*damaged.*adapter_model.safetensors"),
        ("adapter_model.safetensors", "garbage", "saved .*damaged.*adapter_model.safetensors"),
        ("optimizer.safetensors", "garbage", "saved .*damaged.*optimizer.safetensors"),
    ],
)
def test_a_damaged_directory_is_refused(
    file: str, content: str | None, message: str, shared_host: Host, valid_checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(valid_checkpoint, saved := tmp_path / "saved")
    (saved / file).unlink()
    if content is not None:
        (saved / file).write_text(content)
    with pytest.raises(RequestError, match=message):
        shared_host.load_state("n", saved, optimizer=True)


def test_optimizer_state_of_other_shapes_is_refused(shared_host: Host, valid_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(valid_checkpoint, saved := tmp_path / "saved")
    tensors = load_file(saved / "optimizer.safetensors")
    name = next(name for name in tensors if name.endswith("exp_avg"))
    save_file(tensors | {name: tensors[name][:1].clone()}, saved / "optimizer.safetensors")
    with pytest.raises(RequestError, match=r"saved .*damaged.*optimi[sz]er"):
        shared_host.load_state("n", saved, optimizer=True)


def test_unwritable_directory_raises_os_error(host: Host, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"adapter_model.safetensors cannot be written"):
        host.save_state("m", tmp_path / "missing", optimizer=True)


def test_tiny_adapter_loads_with_weights_of_its_seed(tmp_path: Path) -> None:
    seed = 5
    loaded = load_model(TrainedModelSection(name="tiny"), seed)
    base = loaded.model.model.embed_tokens.weight.clone()
    host = Host(loaded, name="tiny", tokenizer="tiny", seed=seed)
    host.create("m", LoraSpec(rank=8, seed=0))
    host.save_state("m", tmp_path, optimizer=False)
    again = load_model(TrainedModelSection(name=str(tmp_path)), 0)
    assert torch.equal(again.model.model.embed_tokens.weight, base)
