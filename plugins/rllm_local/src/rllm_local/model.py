"""Loads a model: `tiny`, a Hugging Face directory, a LoRA adapter, a run's checkpoint, or a hub id.

A model is a causal language model, or a classifier: a sequence classifier with one output, the score of a conversation.

The local engine and prefix trees must give the same logits as transformers for a single row. Loading checks this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from rllm_backend_kit.model_file_checks import check_whole_model
from rllm_backend_kit.model_files import (
    check_vocabulary,
    generation_stop_ids,
    is_only_cached,
    longest_context,
    longrope_limit,
    silence_transformers,
    stop_ids,
)
from rllm_backend_kit.weight_comparison import probe_batch
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.weight_comparison import Probe
from rllm_core.errors import ConfigError
from rllm_local.adapter_files import AdapterBase, adapter_directory, read_base
from rllm_local.attention import FULL, SLIDING, layer_types
from rllm_local.exact_attention import fix_order_of_sums, use_exact_attention, use_torch_attention
from rllm_local.forward import Row, last_logits
from rllm_local.kv_cache import PageCache
from rllm_local.logprobs import is_classifier, token_outputs
from rllm_local.lora import Adapter, merge_into
from rllm_local.master_weights import MasterWeights, cast_weights
from rllm_local.model_name import TINY, directory_of, model_name_hint
from rllm_local.prefix_trees import micro_batches
from rllm_local.settings import ModelSection, TrainedModelSection
from rllm_local.weights import fingerprint


def check_max_length(name: str, max_length: int, rope_changes_beyond: int | None) -> None:
    """Raise ConfigError if conversations may become longer than longrope computes exactly."""
    if rope_changes_beyond is not None and max_length > rope_changes_beyond:
        raise ConfigError(
            "context-too-long",
            f"training.max_length={max_length}, but model.name={name!r} has longrope. Beyond {rope_changes_beyond} "
            "tokens it changes the angles of all tokens, so log-probs would depend on the cache and on other rows.",
            f"Set training.max_length={rope_changes_beyond} or lower.",
        )


def find_device(name: str) -> torch.device:
    """Return the device with this name. `auto` is CUDA if available, else the CPU.

    Raises:
        ConfigError: the device does not exist or cannot be used.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "no-gpu",
            f"model.device={name!r}, but torch finds no CUDA device.",
            "Set model.device=auto or model.device=cpu.",
        )
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            "bad-value", f"model.device={name!r} cannot be used: {error}.", "Set model.device to auto, cpu or cuda."
        ) from error
    return device


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A causal language model, or a classifier, with its tokenizer."""

    model: Any
    """`transformers.PreTrainedModel`, in evaluation mode on its device."""
    tokenizer: Any
    stop_ids: frozenset[int]
    """Tokens that end a response."""
    max_context: int
    """Maximum number of tokens in a row that the model computes exactly."""
    rope_changes_beyond: int | None = None
    """Length beyond which longrope changes the angles of all tokens in a row. None for other models."""
    adapter: Adapter | None = None
    """The LoRA adapter to train. None if all weights are trained."""
    continues_adapter: bool = False
    """True if the adapter was trained before. The model without it is then not the user's starting model."""


def load_model(settings: ModelSection, seed: int, *, classifier: bool = False) -> LoadedModel:
    """Load a model and its tokenizer by name, for forward passes. Only `tiny` and a classifier's new head use `seed`.

    Raises:
        ConfigError: the directory does not exist or contains no model, or this backend cannot sample from the model.
    """
    loaded = _load_float32(settings.name, seed, classifier=classifier)
    cast_weights(loaded.model, getattr(torch, settings.dtype))
    _move(loaded.model, settings)
    return loaded


def load_model_to_train(
    settings: TrainedModelSection, seed: int, *, classifier: bool = False
) -> tuple[LoadedModel, MasterWeights]:
    """Load a model like `load_model`, with float32 weights to train: all weights from the files, or a LoRA adapter.

    Raises:
        ConfigError: an error of `load_model`, or the shape of a saved adapter differs from the settings.
    """
    if settings.lora_rank:
        loaded = _load_with_adapter(settings, seed)
        return loaded, MasterWeights(loaded.model)
    loaded = _load_float32(settings.name, seed, classifier=classifier)
    _move(loaded.model, settings)
    return loaded, MasterWeights.from_float32(loaded.model, getattr(torch, settings.dtype))


def _move(model: Any, settings: ModelSection) -> None:
    """Move a model to its device. Only a CPU has exact attention."""
    model.to(find_device(settings.device))
    if model.device.type != "cpu":
        # Devices that packages add to torch copy tied weights separately.
        model.tie_weights()
        use_torch_attention(model)


def load_model_to_sample(settings: TrainedModelSection, seed: int) -> LoadedModel:
    """Load the model of `load_model_to_train` in a process that only samples. It raises the same ConfigErrors."""
    return _load_with_adapter(settings, seed) if settings.lora_rank else load_model(settings, seed)


def _load_with_adapter(settings: TrainedModelSection, seed: int) -> LoadedModel:
    trained_before = adapter_directory(settings.name)
    if trained_before is None:
        directory = directory_of(settings.name) if settings.name != TINY else None
        base = AdapterBase(str(directory.resolve()) if directory else settings.name, seed)
        loaded = _load_float32(settings.name, seed)
    else:
        base = read_base(trained_before)
        loaded = _load_below(trained_before)
    model = loaded.model
    cast_weights(model, getattr(torch, settings.dtype))
    _move(model, settings)
    adapter = Adapter(model, settings, base, seed)
    if trained_before is not None:
        try:
            adapter.load(trained_before)
        except ValueError as error:
            raise ConfigError(
                "adapter-mismatch",
                f"model.name={settings.name!r} is a LoRA adapter that does not match model.lora_rank, lora_alpha and "
                f"lora_target_modules: {error}.",
                "Set these keys to the values in its adapter_config.json, or set model.lora_rank=0 to train all "
                "weights.",
            ) from error
    return replace(loaded, adapter=adapter, continues_adapter=trained_before is not None)


def _load_below(directory: Path) -> LoadedModel:
    """Return the base model of the adapter in `directory`, in float32."""
    base = read_base(directory)
    which = f"model.name={str(directory)!r} is a LoRA adapter of the model {base.name!r}"
    hint = "Restore that model, or set base_model_name_or_path in the adapter_config.json to its current path."
    try:
        loaded = _load_float32(base.name, base.seed)
    except ConfigError as error:
        raise ConfigError(error.code, f"{which}. {error.message}", hint) from error
    known = base.sha256 is not None and base.dtype is not None
    if known and fingerprint(loaded.model, getattr(torch, str(base.dtype))) != base.sha256:
        raise ConfigError(
            "adapter-base-changed", f"{which}, but the weights of that model have changed since the training.", hint
        )
    return loaded


def _load_float32(name: str, seed: int, *, classifier: bool = False) -> LoadedModel:
    silence_transformers()
    fix_order_of_sums()
    adapter = adapter_directory(name)
    if classifier:
        return _load_classifier(name, adapter, seed)
    if adapter is not None:
        below = _load_below(adapter)
        return replace(below, model=merge_into(below.model, adapter))
    if name == TINY:
        from rllm_local import tiny

        tokenizer = tiny.build_tokenizer()
        model: Any = tiny.build_model(len(tokenizer), seed)
    else:
        model, tokenizer, _ = _load_pretrained(name)
    _check_chat_template(name, tokenizer)
    check_family(model, name)
    return _describe(name, model, tokenizer, getattr(model.generation_config, "eos_token_id", None))


HEAD = "score.weight"
"""Name of the output layer's weights in the classifiers of transformers that have a decoder."""


def _load_classifier(name: str, adapter: Path | None, seed: int) -> LoadedModel:
    """Return a classifier in float32. A causal language model gets a new head."""
    if adapter is not None:
        raise ConfigError(
            "adapter-needs-merge",
            f"model.name={name!r} is a LoRA adapter, and a reward model trains all weights.",
            "Merge the adapter with `rllm export RUN --to merged`, and set model.name to the merged model.",
        )
    if name == TINY:
        from rllm_local import tiny

        tokenizer = tiny.build_tokenizer()
        model: Any = tiny.build_classifier(len(tokenizer), seed)
        is_new = True
    else:
        model, tokenizer, is_new = _load_pretrained(name, classifier=True)
    _check_chat_template(name, tokenizer)
    check_family(model, name)
    config = model.config.get_text_config()
    if tokenizer.pad_token_id is not None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.pad_token_id is None:
        raise ConfigError(
            "no-padding-token",
            f"model.name={name!r} has no padding token, so a reward model could not find the end of a conversation.",
            "Set pad_token in its tokenizer_config.json to a token that no conversation contains.",
        )
    if is_new:
        # transformers has also initialized it, but with the random state of the process.
        generator = torch.Generator().manual_seed(seed)
        torch.nn.init.normal_(model.score.weight, std=config.initializer_range, generator=generator)
    source = directory_of(name) if name != TINY else None
    return _describe(name, model, tokenizer, None if name == TINY else generation_stop_ids(source or name))


def _check_chat_template(name: str, tokenizer: Any) -> None:
    if tokenizer.chat_template is None:
        raise ConfigError(
            "no-chat-template",
            f"model.name={name!r}: its tokenizer has no chat template.",
            "Use a chat or instruct model, or set chat_template in its tokenizer_config.json.",
        )


def _describe(name: str, model: Any, tokenizer: Any, of_generation: Any) -> LoadedModel:
    stops = stop_ids(tokenizer, of_generation)
    check_vocabulary(name, tokenizer, stops, model.get_input_embeddings().num_embeddings)
    return LoadedModel(
        model=model.eval(),
        tokenizer=tokenizer,
        stop_ids=stops,
        max_context=longest_context(model.config.get_text_config(), tokenizer.model_max_length),
        rope_changes_beyond=longrope_limit(model.config.get_text_config()),
    )


def _load_pretrained(name: str, *, classifier: bool = False) -> tuple[Any, Any, bool]:
    """Return model and tokenizer, and True if the model is a classifier whose head is not in its files."""
    from transformers import AutoTokenizer

    directory = directory_of(name)
    if directory is not None:
        check_whole_model(f"model.name={name!r}", directory)
    source = directory or name
    try:
        cached = is_only_cached(source)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
        model, found = auto_class(classifier=classifier).from_pretrained(
            source,
            **({"num_labels": 1} if classifier else {}),
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            local_files_only=cached,
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        why = " ".join(str(error).split())[:300].rstrip(".")
        missing = "" if Path(name).exists() else f" There is no directory {name} here, so it was read as a hub id."
        raise ConfigError(
            "model-not-loadable", f"model.name={name!r} cannot be loaded: {why}.", model_name_hint(name) + missing
        ) from error
    # transformers fills missing weights with random numbers, and `silence_transformers` suppresses its warning.
    random = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    is_new = classifier and random == [HEAD] and not found["mismatched_keys"]
    if random and not is_new:
        raise ConfigError(
            "model-not-loadable",
            f"model.name={name!r}: its files do not contain all weights of its config.json. "
            f"{len(random)} are missing or have a different shape, for example {random[0]}.",
            "Save or download the model again.",
        )
    return model, tokenizer, is_new


def auto_class(*, classifier: bool) -> Any:
    """Return the class of transformers that loads such models."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    return AutoModelForSequenceClassification if classifier else AutoModelForCausalLM


NEAR = 1e-3
"""Maximum difference of logits, relative to the largest logit."""
PROMPT, FIRST, SECOND = [1, 2, 3], [4, 5, 6], [7, 8, 9]
"""Tokens of the probe: two rows with the same prompt."""


def check_family(model: Any, name: str) -> None:
    """Compare logits of a few tokens from the engine and from training with the plain model's logits.

    A causal model gets exact attention, if its logits then agree too. A classifier's scores are compared.

    Raises:
        ConfigError: the logits differ or cannot be computed.
    """
    config = model.config.get_text_config()
    which = f"model.name={name!r} (model type {config.model_type})"
    if config._attn_implementation != "sdpa":
        raise ConfigError(
            "unsupported-model",
            f"{which} uses the attention {config._attn_implementation!r}, but the local engine needs 'sdpa'.",
            "Use a model with torch's scaled dot product attention, for example Llama or Qwen3.",
        )
    other = layer_types(config) - {FULL, SLIDING}
    if other:
        raise ConfigError(
            "unsupported-model",
            f"{which} has layers with {', '.join(sorted(other))}, which the local engine does not support.",
            "Use a model whose layers have full or sliding attention, for example Llama, Qwen3 or Gemma 3.",
        )
    expected, problem = _separate_rows(model)
    if expected is not None:
        use_torch_attention(model)
        problem = _problem(model, expected)
    if problem is not None:
        raise ConfigError(
            "unsupported-model",
            f"{which} {problem}.",
            "Use a different model type, for example Llama, Qwen3 or Gemma 3.",
        )
    if is_classifier(model) or expected is None:
        return
    use_exact_attention(model)
    if _problem(model, expected) is not None:
        use_torch_attention(model)


@torch.no_grad()
def _separate_rows(model: Any) -> tuple[list[Tensor] | None, str | None]:
    """Return the plain model's logits of each row, (n_token or 1, n_vocabulary or 1), or the reason without them."""
    try:
        with _short_window(model.config.get_text_config()):
            return [_logits(model, [PROMPT + row])[0] for row in (FIRST, SECOND)], None
    except Exception as error:  # noqa: BLE001  (each family fails differently, and every failure has the same meaning)
        return None, f"does not compute logits of token ids ({_reason(error)})"


def _reason(error: Exception) -> str:
    why = " ".join(str(error).split())[:150].rstrip(".")
    return f"{type(error).__name__}: {why}"


@torch.no_grad()
def _problem(model: Any, separate: list[Tensor]) -> str | None:
    """Return why the model cannot be sampled or trained exactly, None if it can."""
    problem = "cannot compute attention over rows with a common prefix"
    try:
        with _short_window(model.config.get_text_config()):
            if _training_differs(model, separate):
                return problem
            problem = "has attention that cannot read the engine's cache of keys and values"
            return problem if not is_classifier(model) and _sampling_differs(model, separate) else None
    except Exception as error:  # noqa: BLE001  (each family fails differently, and every failure has the same meaning)
        return f"{problem} ({_reason(error)})"


@contextmanager
def _short_window(config: Any) -> Iterator[None]:
    """Set the sliding window to 2 tokens in this context, so that a few tokens show if the model uses its mask."""
    if SLIDING not in layer_types(config):
        yield
        return
    before, config.sliding_window = config.sliding_window, 2
    try:
        yield
    finally:
        config.sliding_window = before


def _training_differs(model: Any, separate: list[Tensor]) -> bool:
    rows, prompt = [PROMPT + FIRST, PROMPT + SECOND], len(PROMPT)
    expected = torch.log_softmax(torch.cat([logits[prompt - 1 : -1] for logits in separate]), dim=-1)
    if is_classifier(model):
        # A score is before the only sampled token.
        rows, prompt = [[*row, 0] for row in rows], len(rows[0])
        expected = torch.stack(separate)
    batch = probe_batch(Probe(tokens=np.array(rows, np.int32), prompt=prompt))
    (part,) = micro_batches(batch, np.arange(2), 100, model.device)
    outputs = token_outputs(model, part, 1.0)
    if is_classifier(model):
        return _differ(outputs.logprobs[:, None], expected)
    return _differ(outputs.of_ids(torch.arange(outputs.vocabulary).expand(len(expected), -1)), expected)


def _sampling_differs(model: Any, separate: list[Tensor]) -> bool:
    cache = PageCache(model.config, limit=3)
    # First rows of different lengths, then one token each. The engine reads these two cases differently.
    first = [_row(3, 0, PROMPT + FIRST[:1]), _row(1, 0, PROMPT + SECOND[:2])]
    then = [_row(3, 4, FIRST[1:2]), _row(1, 5, SECOND[2:])]
    return _differ(last_logits(model, cache, first), torch.stack([separate[0][3], separate[1][4]])) or _differ(
        last_logits(model, cache, then), torch.stack([separate[0][4], separate[1][5]])
    )


def _row(page: int, cached: int, fresh: list[int]) -> Row:
    return Row([page], cached, np.array(fresh, np.int32), SamplingParams(max_tokens=1), 0)


def _logits(model: Any, ids: list[list[int]], **options: Any) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor(ids).to(model.device), use_cache=False, **options).logits
    return logits


def _differ(logits: Tensor, expected: Tensor) -> bool:
    # The comparison is written so that NaN counts as a difference.
    return not bool((logits - expected).abs().max() <= NEAR * expected.abs().max())
