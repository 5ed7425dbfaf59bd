"""`rllm export`: what it writes opens in other programs and answers alike; what it refuses says what to do."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from expecting import check_printed
from local_models import make_plan, random_batch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm.cli.main import main
from rllm_local import tiny
from rllm_local.exact_attention import use_torch_attention
from rllm_local.model import LoadedModel, load_model_to_train
from rllm_local.settings import TrainedModelSection, TrainingSection
from rllm_local.trainer import save_state
from rllm_local.update import Updater

IDS = torch.arange(6, 40)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=IDS).logits.float()


@pytest.fixture
def train(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoadedModel]:
    """Write a run to ``run``. Its model is the one from the newest checkpoint."""
    monkeypatch.chdir(tmp_path)
    tiny.build_model(len(tokenizer), 3).save_pretrained("base")
    tokenizer.save_pretrained("base")

    def make(**settings: Any) -> LoadedModel:
        loaded, masters = load_model_to_train(TrainedModelSection(name="./base", device="cpu", **settings), 0)
        section = TrainingSection(learning_rate=1e-2)
        updater = Updater(
            loaded.model, section, total_steps=9, temperature=1.0, max_response_length=50, masters=masters
        )
        for step in range(2):
            updater.update(random_batch([(3, 4), (5, 6)], seed=step), make_plan(global_step=step))
        directory = Path("run/checkpoints/step_000002/backend")
        directory.mkdir(parents=True)
        (directory.parent.parent / "latest").symlink_to("step_000002")
        save_state(directory, masters, loaded.tokenizer, updater.optimizer, adapter=loaded.adapter)
        return loaded

    return make


def test_exported_adapter_loads_in_peft_and_merges(train: Callable[..., LoadedModel]) -> None:
    loaded = train(lora_rank=4)
    assert main(["export", "run", "--to", "adapter", "--output", "adapter"]) == 0
    for form in ("merged", "hf"):
        assert main(["export", "run", "--to", form, "--output", form]) == 0
        opened = AutoModelForCausalLM.from_pretrained(form, dtype=torch.float32)
        torch.testing.assert_close(logits(opened), logits(loaded.model), rtol=1e-5, atol=1e-5)
        assert not Path(form, "adapter_config.json").exists()
    use_torch_attention(loaded.model)
    base = AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32)
    opened = peft.PeftModel.from_pretrained(base, "adapter")
    assert torch.equal(logits(opened), logits(loaded.model))
    assert main(["export", "adapter", "--to", "merged", "--output", "later"]) == 0
    merged = AutoModelForCausalLM.from_pretrained("later", dtype=torch.float32)
    torch.testing.assert_close(logits(merged), logits(loaded.model), rtol=1e-5, atol=1e-5)


def test_a_tied_output_layer_is_merged_separately(
    train: Callable[..., LoadedModel],
) -> None:
    train()
    base = AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32)
    assert base.config.tie_word_embeddings
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=2,
        target_modules=["lm_head", "q_proj"],
        init_lora_weights=False,
        base_model_name_or_path=str(Path("base").absolute()),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft, about that very merge
        adapted = peft.get_peft_model(base, settings)
        expected = logits(adapted)
        adapted.save_pretrained("adapter")
    assert main(["export", "adapter", "--to", "merged", "--output", "merged"]) == 0
    merged = AutoModelForCausalLM.from_pretrained("merged", dtype=torch.float32)
    torch.testing.assert_close(logits(merged), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_exporting_an_adapter_without_one_fails(
    form: str, train: Callable[..., LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    train()
    assert main(["export", "run", "--to", form]) == 2
    check_printed(capsys.readouterr().err, "no-adapter", "run", form)
    assert not Path(f"run/export-{form}").exists()


def test_nothing_is_overwritten(train: Callable[..., LoadedModel], capsys: pytest.CaptureFixture[str]) -> None:
    train()
    Path("taken").mkdir()
    Path("taken/mine").write_text("mine")
    assert main(["export", "run", "--to", "hf", "--output", "taken"]) == 2
    check_printed(capsys.readouterr().err, "directory-in-use", "taken")
    assert [path.name for path in Path("taken").iterdir()] == ["mine"]


def test_adapter_with_missing_model_names_its_path(
    train: Callable[..., LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    train(lora_rank=4)
    Path("base").rename("elsewhere")
    assert main(["export", "run", "--to", "merged"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    check_printed(said, "model-not-loadable", "base")
    assert [path.name for path in Path("run").iterdir()] == ["checkpoints"], "nothing half-written stays"


def test_whole_model_opens_in_transformers_with_every_bit(train: Callable[..., LoadedModel]) -> None:
    loaded = train()
    assert main(["export", "run", "--to", "hf"]) == 0
    opened = AutoModelForCausalLM.from_pretrained("run/export-hf", dtype=torch.float32)
    use_torch_attention(loaded.model)
    assert torch.equal(logits(opened), logits(loaded.model))
    assert AutoTokenizer.from_pretrained("run/export-hf").encode("12 plus 3") == loaded.tokenizer.encode("12 plus 3")
    assert main(["export", "run", "--to", "hf", "--dtype", "bfloat16", "--output", "small"]) == 0
    assert AutoModelForCausalLM.from_pretrained("small").dtype == torch.bfloat16
    sizes = [Path(directory, "model.safetensors").stat().st_size for directory in ("run/export-hf", "small")]
    assert sizes[1] < 0.55 * sizes[0]


@pytest.mark.parametrize(
    ("directory", "backend", "exit_code", "value"),
    [
        (None, None, 2, "error[run-not-found]"),
        ("run/checkpoints", None, 2, "error[no-checkpoint]"),
        ("run", None, 1, "error[no-model-in-checkpoint]"),
        ("run/checkpoints/latest/backend", None, 1, "contains no model"),
        ("run/checkpoints/latest/backend", ("endpoint", "rllm"), 1, "contains no model"),
        ("run/checkpoints/latest/backend", ("far", "not-installed"), 2, "not-installed/far"),
    ],
)
def test_run_without_a_model_is_refused(
    directory: str | None,
    backend: tuple[str, str] | None,
    exit_code: int,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The backend of the run fetches a model that its checkpoints do not contain."""
    monkeypatch.chdir(tmp_path)
    if directory is not None:
        Path(directory).mkdir(parents=True)
    if backend is not None:
        plugin = {"kind": "backend", "name": backend[0], "distribution": backend[1]}
        Path("run/plugins.json").write_text(json.dumps([plugin]))
    assert main(["export", "run", "--to", "hf"]) == exit_code
    assert value in " ".join(capsys.readouterr().err.split())
