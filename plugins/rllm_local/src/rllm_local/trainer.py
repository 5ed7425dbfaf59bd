"""The training half of the backend. It computes columns, updates the model's weights, and saves and loads them.

It does not depend on sampling, and can run in a different process than the sampling half.

A checkpoint contains the model as a Hugging Face directory, and the rest as safetensors. The directory contains the
float32 weights for any computation type, so that a resumed run continues exactly. Its config.json contains the
computation type. With LoRA, the directory contains only the adapter, in peft's format.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rllm_core.contracts.backend import RunContext
from rllm_core.errors import CheckpointError, ConfigError
from rllm_core.seeding import derive_seed
from rllm_local.adapter_files import CONFIG, adapter_directory, read_base
from rllm_local.columns import ColumnFiller
from rllm_local.critic import Critic
from rllm_local.logprobs import is_classifier
from rllm_local.lora import Adapter
from rllm_local.master_weights import MasterWeights
from rllm_local.model import LoadedModel, auto_class, load_model_to_train
from rllm_local.reference import AdapterBaseReference, Reference
from rllm_local.settings import LocalConfig
from rllm_local.update import Updater


class Trainer:
    """A model with its optimizer, critic and reference. Use it on one thread only.

    `updater` makes the updates, and `filler` computes the columns that they need.
    """

    def __init__(self, run: RunContext, loaded: LoadedModel, masters: MasterWeights) -> None:
        """Create the trainer. If the run needs a reference, it is the model in its current state.

        Raises:
            ConfigError: the model cannot be the reference.
        """
        settings: LocalConfig = run.backend_config
        model, temperature = loaded.model, run.config.sampling.train.temperature
        self.masters = masters
        self.loaded = loaded
        self.max_tokens = settings.training.tokens_per_microbatch(model.device.type)
        self._critic = Critic(model, settings.critic) if "values" in run.needs else None
        self._reference = _reference_of(loaded) if "ref_logprobs" in run.needs else None
        self.filler = ColumnFiller(
            model,
            temperature=temperature,
            max_tokens_per_microbatch=self.max_tokens,
            recompute_old_logprobs=run.recomputes_old_logprobs,
            reference=self._reference,
            critic=self._critic,
        )
        self.updater = Updater(
            model,
            settings.training,
            total_steps=run.total_steps,
            temperature=temperature,
            max_response_length=run.config.data.max_response_length,
            critic=self._critic,
            masters=masters,
        )

    def save(self, directory: Path) -> None:
        """Write the state that `load` reads into an existing empty directory."""
        loaded, updater = self.loaded, self.updater
        save_state(directory, self.masters, loaded.tokenizer, updater.optimizer, self._critic, loaded.adapter)
        if self._reference is not None:
            self._reference.save(directory)

    def load(self, directory: Path) -> None:
        """Restore the state that `save` wrote.

        Raises:
            CheckpointError: the state belongs to a different model or run.
        """
        if self._reference is not None:
            self._reference.check(directory)
        load_state(directory, self.masters, self.updater.optimizer, self._critic, self.loaded.adapter)


def load_trainer(run: RunContext) -> tuple[LoadedModel, Trainer]:
    """Load a run's model, and create its trainer.

    Raises:
        ConfigError: an error of `load_model_to_train`, or the model cannot be the reference.
    """
    seed = derive_seed(run.seed, "model")
    loaded, masters = load_model_to_train(run.backend_config.model, seed, classifier="scores" in run.needs)
    return loaded, Trainer(run, loaded, masters)


def _reference_of(loaded: LoadedModel) -> Reference:
    if loaded.adapter is None:
        return Reference(loaded.model)
    if loaded.continues_adapter:
        raise ConfigError(
            "adapter-needs-merge",
            "model.name is a LoRA adapter that this run continues to train. rllm.algorithm.kl_beta needs the run's "
            "starting model as reference, but the adapter's base model is a different one.",
            "Merge the adapter with `rllm export RUN --to merged`, and set model.name to the merged model.",
        )
    return AdapterBaseReference(loaded.adapter)


MODEL = "model"
CRITIC = "critic.safetensors"
OPTIMIZER = "optimizer.safetensors"


def save_state(
    directory: Path,
    masters: MasterWeights,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    critic: Critic | None = None,
    adapter: Adapter | None = None,
) -> None:
    """Write the state into an empty directory. `--model`, transformers and peft can load ``directory/model``."""
    if adapter is None:
        masters.model.save_pretrained(directory / MODEL, state_dict=masters.state_dict())
    else:
        adapter.save(directory / MODEL)
    tokenizer.save_pretrained(directory / MODEL)
    if critic is not None:
        save_file(critic.state_dict(), directory / CRITIC)
    tensors = {
        f"{name}/{key}": value.contiguous()
        for name, parameter in _named_parameters(masters, critic)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    save_file(tensors, directory / OPTIMIZER)


def load_state(
    directory: Path,
    masters: MasterWeights,
    optimizer: torch.optim.Optimizer,
    critic: Critic | None = None,
    adapter: Adapter | None = None,
) -> None:
    """Restore weights and optimizer exactly.

    Raises:
        CheckpointError: the directory contains a different model or weights that are not float32, or it lacks a critic
            that the run needs.
    """
    if critic is not None and not (directory / CRITIC).exists():
        raise CheckpointError(
            "checkpoint-lacks-state",
            f"{directory} contains no critic, but an estimator of this run needs its values.",
            "Resume with the same estimators as before, or start a new run from this checkpoint's model.",
        )
    if adapter is None:
        _load_model(directory, masters)
    else:
        _load_adapter(directory, adapter)
    if critic is not None:
        critic.load_state_dict(load_file(directory / CRITIC))
    tensors = load_file(directory / OPTIMIZER)
    optimizer.state.clear()
    for name, parameter in _named_parameters(masters, critic):
        state = {
            key: tensors[f"{name}/{key}"].to(parameter.device)
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}/{key}" in tensors
        }
        if state:
            optimizer.state[parameter] = state


def _load_model(directory: Path, masters: MasterWeights) -> None:
    if adapter_directory(str(directory / MODEL)) is not None:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a LoRA adapter, but this run trains all weights.",
            "Resume with the same model.lora_rank with which you started the run.",
        )
    kind = auto_class(classifier=is_classifier(masters.model))
    saved, found = kind.from_pretrained(directory / MODEL, dtype=torch.float32, output_loading_info=True)
    try:
        # transformers does not raise an error if it fills missing weights with random numbers, or ignores weights.
        if found["missing_keys"] or found["unexpected_keys"]:
            raise RuntimeError("the files have the weights of a different class")
        masters.load(saved.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a different model than this run trains.",
            "Resume with the same model.name with which you started the run.",
        ) from error


def _load_adapter(directory: Path, adapter: Adapter) -> None:
    if not (directory / MODEL / CONFIG).exists():
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a whole model, but this run trains a LoRA adapter.",
            "Resume with the same model.lora_rank with which you started the run.",
        )
    base = read_base(directory / MODEL)
    if (base.dtype, base.sha256) != (adapter.base.dtype, adapter.base.sha256):
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a LoRA adapter for a different model or dtype than model.name and model.dtype.",
            f"Restore the model that was at {base.name!r}, or start a new run.",
        )
    try:
        adapter.load(directory / MODEL)
    except ValueError as error:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} contains a different LoRA adapter than this run trains: {error}.",
            "Resume with the same model.lora_… keys with which you started the run.",
        ) from error


def _named_parameters(masters: MasterWeights, critic: Critic | None) -> Iterator[tuple[str, torch.nn.Parameter]]:
    yield from masters.named_parameters()
    if critic is not None:
        yield from critic.named_parameters(prefix="critic")
