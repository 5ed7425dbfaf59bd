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
from rllm_local.model import LoadedModel, load_model_to_train
from rllm_local.settings import TrainedModelSection, TrainingSection
from rllm_local.state import save_state
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


def test_a_whole_model_opens_in_transformers_with_every_bit(train: Callable[..., LoadedModel]) -> None:
    loaded = train()
    assert main(["export", "run", "--to", "hf"]) == 0
    opened = AutoModelForCausalLM.from_pretrained("run/export-hf", dtype=torch.float32)
    assert torch.equal(logits(opened), logits(loaded.model))
    assert AutoTokenizer.from_pretrained("run/export-hf").encode("12 plus 3") == loaded.tokenizer.encode("12 plus 3")


def test_a_smaller_type_is_half_the_size(train: Callable[..., LoadedModel]) -> None:
    train()
    assert main(["export", "run", "--to", "hf"]) == 0
    assert main(["export", "run", "--to", "hf", "--dtype", "bfloat16", "--output", "small"]) == 0
    assert AutoModelForCausalLM.from_pretrained("small").dtype == torch.bfloat16
    sizes = [Path(directory, "model.safetensors").stat().st_size for directory in ("run/export-hf", "small")]
    assert sizes[1] < 0.55 * sizes[0]


@pytest.mark.parametrize("form", ["merged", "hf"])
def test_a_merged_model_answers_as_the_adapter_does(form: str, train: Callable[..., LoadedModel]) -> None:
    loaded = train(lora_rank=4)
    assert main(["export", "run", "--to", form, "--output", "out"]) == 0
    opened = AutoModelForCausalLM.from_pretrained("out", dtype=torch.float32)
    torch.testing.assert_close(logits(opened), logits(loaded.model), rtol=1e-5, atol=1e-5)
    assert not Path("out/adapter_config.json").exists()


def test_an_adapter_opens_in_peft_and_can_be_merged_later(train: Callable[..., LoadedModel]) -> None:
    loaded = train(lora_rank=4)
    assert main(["export", "run", "--to", "adapter", "--output", "adapter"]) == 0
    base = AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32)
    opened = peft.PeftModel.from_pretrained(base, "adapter")
    assert torch.equal(logits(opened), logits(loaded.model))
    assert main(["export", "adapter", "--to", "merged", "--output", "merged"]) == 0
    merged = AutoModelForCausalLM.from_pretrained("merged", dtype=torch.float32)
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
def test_a_run_without_an_adapter_has_none_to_write(
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


def test_an_adapter_whose_model_is_gone_says_where_it_was(
    train: Callable[..., LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    train(lora_rank=4)
    Path("base").rename("elsewhere")
    assert main(["export", "run", "--to", "merged"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    check_printed(said, "model-not-loadable", "base")
    assert [path.name for path in Path("run").iterdir()] == ["checkpoints"], "nothing half-written stays"


@pytest.mark.parametrize(
    ("make", "exit_code", "code"),
    [
        (lambda run: None, 2, "run-not-found"),
        (lambda run: (run / "checkpoints").mkdir(parents=True), 2, "no-checkpoint"),
        (lambda run: run.mkdir(), 1, "no-model-in-checkpoint"),
    ],
)
def test_what_is_no_run_is_refused(
    make: Callable[[Path], Any],
    exit_code: int,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("run"))
    assert main(["export", "run", "--to", "hf"]) == exit_code
    check_printed(" ".join(capsys.readouterr().err.split()), code, "run")


@pytest.mark.parametrize(
    ("backend", "code", "said"),
    [
        (None, 1, "contains no model"),
        ({"kind": "backend", "name": "endpoint", "distribution": "rllm"}, 1, "contains no model"),
        ({"kind": "backend", "name": "far", "distribution": "not-installed"}, 2, "not-installed/far"),
    ],
)
def test_a_checkpoint_without_a_model_needs_a_backend_that_fetches_it(
    backend: Any,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run/checkpoints/latest/backend").mkdir(parents=True)
    if backend is not None:
        Path("run/plugins.json").write_text(json.dumps([backend]))
    assert main(["export", "run", "--to", "hf"]) == code
    assert said in " ".join(capsys.readouterr().err.split())
