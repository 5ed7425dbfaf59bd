"""The memory that `--dry-run` announces is what an update takes, within a quarter."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from expecting import check_values
from local_models import make_plan, random_batch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from rllm.cli.main import main
from rllm_core.schema.run_config import RunConfig
from rllm_local import memory, tiny, vocabulary
from rllm_local.adapter_files import AdapterBase
from rllm_local.exact_attention import use_exact_attention
from rllm_local.footprint import SHARED, footprint
from rllm_local.lora import Adapter
from rllm_local.master_weights import MasterWeights, cast_weights
from rllm_local.memory import Load, memory_parts
from rllm_local.settings import LocalConfig, TrainedModelSection, TrainingSection
from rllm_local.update import Updater


@pytest.fixture(scope="module")
def peak_memory() -> Any:
    """The class of the module next to this one."""
    return runpy.run_path(str(Path(__file__).parent / "peak_memory.py"))["PeakMemory"]


MID_SIZE = {
    "vocab_size": 4000,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
CONFIGS = {
    "tiny": lambda: tiny.build_model(79, 0).config,
    "Llama": lambda: LlamaConfig(**MID_SIZE),
    "Qwen3, tied": lambda: Qwen3Config(**MID_SIZE, head_dim=64, tie_word_embeddings=True),
    "logits in chunks": lambda: LlamaConfig(**(MID_SIZE | {"vocab_size": 8_000, "num_hidden_layers": 2})),
}
CHUNK = 1 << 22
"""Entries of logits that are computed at once, where those of the last of these models are more."""


PLAIN, ALL_AT_ONCE = ("float32", 0, False), ("bfloat16", 8, True)
"""Dtype, rank of the adapter, and whether activations are computed again."""
MEASURED = {
    "tiny": [PLAIN],
    "Llama": [("float32", 8, False), ("bfloat16", 0, True)],
    # Each has other tensors than Llama, and what the options change is the same.
    "Qwen3, tied": [PLAIN],
    "logits in chunks": [ALL_AT_ONCE],
}


@pytest.mark.parametrize(
    ("which", "dtype", "rank", "recompute"),
    [(which, *options) for which, all_options in MEASURED.items() for options in all_options],
)
@pytest.mark.long
def test_estimate_is_within_a_quarter_of_peak(
    which: str, dtype: Any, rank: int, recompute: bool, monkeypatch: pytest.MonkeyPatch, peak_memory: Any
) -> None:
    for module in (memory, vocabulary):
        monkeypatch.setattr(module, "CHUNK", CHUNK)
    section = TrainedModelSection(dtype=dtype, lora_rank=rank)
    training = TrainingSection(gradient_checkpointing=recompute, max_tokens_per_microbatch=1024)
    load = Load(micro_batch_tokens=1024, sampled_tokens=1024, cached_tokens=0, reference=False, critic=False)
    config = CONFIGS[which]()
    parts = memory_parts(config, LocalConfig(model=section, training=training), load)
    assert (load.sampled_tokens * config.vocab_size > CHUNK) == (which == "logits in chunks")

    model = AutoModelForCausalLM.from_config(config).eval()
    use_exact_attention(model)
    if rank:
        cast_weights(model, getattr(torch, dtype))
        Adapter(model, section, AdapterBase("it"), 0)
        masters = MasterWeights(model)
    else:
        masters = MasterWeights.from_float32(model, getattr(torch, dtype))
    updater = Updater(model, training, total_steps=5, temperature=1.0, max_response_length=500, masters=masters)
    # Moments are there after the first update; gradients of one micro-batch are there when the next is computed.
    updater.update(random_batch([(1, 2)], vocabulary=70), make_plan())
    batch = random_batch([(1, 255)] * 8, vocabulary=70)
    moments = [state[name] for state in updater.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *masters, *moments)}
    with peak_memory() as measured:
        updater.update(batch, make_plan())
    assert sum(parts.values()) == pytest.approx(sum(held.values()) + measured.peak, rel=0.25)


def _directory(tmp_path: Path, **changes: int) -> Path:
    Qwen3Config(**(MID_SIZE | changes), architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def _rows(directory: Path, needs: frozenset[str] = frozenset(), **sections: Any) -> dict[str, str]:
    config = LocalConfig(**({"model": {"name": str(directory), "device": "cpu"}} | sections))
    found = footprint(config, RunConfig(), needs)
    assert found is not None
    return dict(found.rows)


def test_reference_critic_and_cache_are_counted(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    plain = _rows(directory)
    both = _rows(directory, frozenset({"ref_logprobs", "values"}))
    assert set(both) - set(plain) == {"reference model", "gradients of the critic"}
    model = {"name": str(directory), "device": "cpu", "lora_rank": 8}
    assert "reference model" not in _rows(directory, frozenset({"ref_logprobs"}), model=model)
    assert _rows(directory, local={"kv_cache_gib": 0.5})["cached keys and values"] == "0.50 GiB"


@pytest.mark.parametrize(("rank", "partial"), [(0, False), (8, True)])
def test_what_a_process_that_trains_takes_is_counted(
    rank: int, partial: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rllm_local.footprint._gib", lambda size: f"{size} GiB")  # rounded, they say too little
    model = TrainedModelSection(name=str(_directory(tmp_path)), lora_rank=rank)
    ahead = {"enable": True, "staleness_threshold": 2, "partial_rollout": partial}
    run = RunConfig.model_validate({"rllm": {"async_training": ahead}})
    apart, here = (
        parts
        for found in (
            footprint(LocalConfig(model=model, local={"training_process": process}), run, frozenset())  # type: ignore[arg-type]
            for process in (True, False)
        )
        if found is not None and (parts := {name: _gibs(size) for name, size in found.rows})
    )
    trained = apart["AdamW's moments"] / 2
    below = apart["weights"] if rank else 0.0
    assert apart[SHARED] == trained
    assert apart["weights that sample"] == (1 if partial else 3) * trained + below
    assert apart["together"] - here["together"] == trained * (1 + partial) + below
    assert SHARED not in here


def _gibs(text: str) -> float:
    number, unit = text.split()
    return float(number) / (1 if unit == "GiB" else 1024)


def test_warning_about_too_little_memory_names_keys(tmp_path: Path) -> None:
    directory = _directory(tmp_path, hidden_size=8192, intermediate_size=32768, num_hidden_layers=80)
    found = footprint(LocalConfig(model=TrainedModelSection(name=str(directory))), RunConfig(), frozenset())
    assert found is not None
    (warning,) = found.warnings
    for key in ("gradient_checkpointing=true", "max_tokens_per_microbatch", "lora_rank=32", "dtype=bfloat16"):
        assert key in warning


def test_mixture_of_experts_gets_no_estimate(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8, "num_experts": 4}
    Qwen3MoeConfig(vocab_size=99, num_key_value_heads=2, moe_intermediate_size=16, **sizes).save_pretrained(tmp_path)
    found = footprint(LocalConfig(model=TrainedModelSection(name=str(tmp_path))), RunConfig(), frozenset())
    assert found is not None
    (warning,) = found.warnings
    check_values(warning, "'qwen3_moe'", "memory")


def test_dry_run_estimates_memory_without_weight_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hub id that is not here is one line and no network."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("asked the network"))
    directory = _directory(tmp_path)
    assert [path.name for path in directory.iterdir()] == ["config.json"]
    assert main(["train", "guess", "--dry-run", "--model", str(directory)]) == 0
    check_values(capsys.readouterr().out, "Memory, at most:", "this machine has")
    assert main(["train", "guess", "--dry-run", "--model", "some-org/some-model"]) == 0
    said = capsys.readouterr()
    check_values(said.err, "config.json", "'some-org/some-model'")
    assert "Memory" not in said.out


def test_tiny_and_a_damaged_config_have_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What loads the model refuses the config."""
    directory = _directory(tmp_path)
    (directory / "config.json").write_text(json.dumps({"model_type": "nonsense"}))
    assert _rows(directory) == {}
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert footprint(LocalConfig(), RunConfig(), frozenset()) is None
