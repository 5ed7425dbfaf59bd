"""Loading models by name: what works, and what is said when it does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecting import check_error
from pydantic import ValidationError
from transformers import (
    AutoModelForCausalLM,
    Dots1Config,
    Dots1ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
)

from rllm_backend_kit.model_files import model_directory
from rllm_core.errors import ConfigError
from rllm_local import tiny
from rllm_local.exact_attention import use_torch_attention
from rllm_local.model import LoadedModel, load_model
from rllm_local.settings import ModelSection

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def _load(name: str | Path, **settings: Any) -> LoadedModel:
    return load_model(ModelSection(name=str(name), **settings), 0)


def _refusal(name: str | Path, **settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _load(name, **settings)
    return caught.value


@pytest.fixture
def save(tmp_path: Path, tokenizer: Any) -> Callable[..., Path]:
    """Saves a model and a tokenizer as transformers does."""

    def write(model: Any = None, directory: str = "saved", words: Any = tokenizer) -> Path:
        (model or tiny.build_model(len(tokenizer), 3)).save_pretrained(tmp_path / directory)
        words.save_pretrained(tmp_path / directory)
        return tmp_path / directory

    return write


def test_tiny_is_built_from_its_seed() -> None:
    first, again, other = (load_model(ModelSection(device="cpu"), seed) for seed in (1, 1, 2))
    weights = [torch.cat([p.flatten() for p in loaded.model.parameters()]) for loaded in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert first.stop_ids == {2}
    assert first.max_context == 512
    assert not first.model.training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiny_has_the_dtype_asked_for(dtype: str) -> None:
    model = _load("tiny", dtype=dtype).model
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}


@pytest.mark.parametrize(
    ("which", "dtype"),
    [
        ("llama", "float32"),
        ("qwen", "bfloat16"),
        *((which, dtype) for which in ("keeps_a_layer", "keeps_a_buffer") for dtype in ("bfloat16", "float16")),
    ],
)
def test_model_in_a_dtype_equals_transformers_model(
    which: str, dtype: str, save: Callable[..., Path], tokenizer: Any, qwen_model: Any
) -> None:
    """Bit for bit, after 250 tokens too: rotary frequencies stay float32, and so does what the class keeps in it."""
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    experts = {"moe_intermediate_size": 16, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}
    torch.manual_seed(0)
    model = {
        "llama": lambda: tiny.build_model(len(tokenizer), 3),
        "qwen": lambda: qwen_model,
        "keeps_a_layer": lambda: Ernie4_5_MoeForCausalLM(
            Ernie4_5_MoeConfig(**sizes, **heads, **experts, moe_num_experts=4, moe_k=2, moe_layer_start_index=1)
        ),
        "keeps_a_buffer": lambda: Dots1ForCausalLM(
            Dots1Config(**sizes, **heads, **experts, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2)
        ),
    }[which]()
    directory = save(model)
    ours = _load(directory, dtype=dtype, device="cpu").model
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    types = [{name: each.dtype for name, each in model.state_dict().items()} for model in (ours, theirs)]
    assert types[0] == types[1]
    assert ours.config.dtype == theirs.config.dtype
    use_torch_attention(ours)
    ids = torch.randint(4, len(tokenizer), (1, 250), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(ours(input_ids=ids).logits, theirs(input_ids=ids).logits)


def test_saved_directory_loads_with_weights_and_tokenizer(
    save: Callable[..., Path], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save()
    expected = tiny.build_model(len(tokenizer), 3)
    monkeypatch.chdir(directory.parent)
    for name in (directory, "saved", "./saved", f"../{directory.parent.name}/saved"):
        loaded = _load(name)
        assert loaded.stop_ids == {2}
        assert loaded.tokenizer.encode("12 plus 3") == tokenizer.encode("12 plus 3")
        for (name_in, weight), other in zip(loaded.model.named_parameters(), expected.parameters(), strict=True):
            assert torch.equal(weight, other), name_in


def test_the_checkpoint_of_a_run_loads(save: Callable[..., Path], tmp_path: Path) -> None:
    inner = tmp_path / "step_000020" / "backend" / "model"
    shutil.copytree(save(), inner)
    assert model_directory(tmp_path / "step_000020") == inner
    assert _load(tmp_path / "step_000020").max_context == 512
    (tmp_path / "latest").symlink_to("step_000020")
    assert _load(tmp_path / "latest").max_context == 512


def test_a_tokenizer_without_a_chat_template_is_refused(save: Callable[..., Path]) -> None:
    words = tiny.build_tokenizer()
    words.chat_template = None
    check_error(_refusal(save(words=words)), "no-chat-template", "chat_template", "tokenizer_config.json")


def _sliding_window_model(kind: str) -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

    if kind == "some layers":
        return Gemma2ForCausalLM(Gemma2Config(vocab_size=100, **SMALL))
    return MistralForCausalLM(MistralConfig(vocab_size=100, **SMALL, sliding_window=16))


@pytest.mark.parametrize("kind", ["some layers", "all layers"])
def test_model_with_sliding_window_keeps_window(kind: str, save: Callable[..., Path]) -> None:
    """The check of a loaded model shortens the window for a moment."""
    loaded = _load(save(_sliding_window_model(kind)))
    assert loaded.max_context == 64
    assert loaded.model.config.sliding_window == (4096 if kind == "some layers" else 16)


def test_model_that_ignores_the_attention_mask_is_rejected(save: Callable[..., Path]) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    bloom = BloomForCausalLM(BloomConfig(vocab_size=100, hidden_size=16, n_layer=2, n_head=2))
    check_error(_refusal(save(bloom)), "unsupported-model", "'eager'", "'sdpa'")


@pytest.mark.parametrize("device", ["nonsense", "cpu:gpu", "meta", ""])
def test_a_device_torch_does_not_know_is_refused(device: str) -> None:
    with pytest.raises(ValidationError, match="auto, cpu, cuda"):
        ModelSection(device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check_error(_refusal("tiny", device=device), "no-gpu", f"model.device={device!r}", "model.device=auto")
    assert _load("tiny").model.device == torch.device("cpu")
    assert "model.device='mps' cannot be used: " in _refusal("tiny", device="mps").message


@pytest.mark.parametrize("name", ["./nowhere", "../a/b", "~/nowhere-at-all", "a/b/c", "some-org/some-model", "tinny"])
def test_name_of_no_model_is_refused(name: str) -> None:
    error = _refusal(name)
    check_error(error, "model-not-loadable", f"model.name={name!r}", "`tiny`")
    assert error.hint.startswith("Did you mean 'tiny'? Use `tiny`, ") == (name == "tinny")


def test_path_of_no_model_is_refused(tmp_path: Path) -> None:
    check_error(_refusal(tmp_path), "model-not-loadable", tmp_path, "config.json")
    file = tmp_path / "model.safetensors"
    file.touch()
    check_error(_refusal(file), "model-not-loadable", file, "a file")


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("config.json", b"{", "valid JSON"),
        ("config.json", b"{}", "Unrecognized model"),
        ("config.json", {"num_hidden_layers": 3}, "model.layers."),
        ("config.json", {"intermediate_size": 64}, "model.layers."),
        ("tokenizer.json", b"{", "model.name="),
        ("tokenizer.json", None, "tokenizer"),
        ("model.safetensors", None, "model.safetensors"),
        ("model.safetensors", b"", "header"),
        ("model.safetensors", b"this is not weights.", "header"),
        ("model.safetensors", 4000, "4,000 of "),
    ],
)
def test_damaged_or_missing_file_is_a_config_error(
    save: Callable[..., Path], file: str, content: Any, expected: str
) -> None:
    """Weights that do not fill the model are not made up."""
    directory = save()
    whole = (directory / file).read_bytes()
    match content:
        case None:
            (directory / file).unlink()
            (directory / "tokenizer_config.json").unlink()
        case dict():
            (directory / file).write_text(json.dumps(json.loads(whole) | content))
        case int():
            (directory / file).write_bytes(whole[:content])
        case _:
            (directory / file).write_bytes(content)
    error = _refusal(directory)
    check_error(error, "model-not-loadable", directory, expected)
    assert "\n" not in error.message
    assert not error.message.endswith(":.")
