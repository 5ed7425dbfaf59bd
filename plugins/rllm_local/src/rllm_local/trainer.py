"""The training half of the backend. It computes columns, updates the model's weights, and saves and loads them.

It does not depend on sampling, and can run in a different process than the sampling half.
"""

from __future__ import annotations

from pathlib import Path

from rllm_core.contracts.backend import RunContext
from rllm_core.errors import ConfigError
from rllm_core.seeding import derive_seed
from rllm_local.columns import ColumnFiller
from rllm_local.critic import Critic
from rllm_local.masters import Masters
from rllm_local.model import LoadedModel, load_model_to_train
from rllm_local.reference import BelowAdapter, Reference
from rllm_local.same_bits import fold_last_product, is_batch_invariant
from rllm_local.settings import LocalConfig
from rllm_local.state import load_state, save_state
from rllm_local.update import Updater


class Trainer:
    """A model with its optimizer, critic and reference. Use it on one thread only.

    `updater` makes the updates, and `filler` computes the columns that they need.
    """

    def __init__(self, run: RunContext, loaded: LoadedModel, masters: Masters) -> None:
        """Create the trainer. If the run needs a reference, it is the model in its current state.

        Raises:
            ConfigError: the model cannot be the reference.
        """
        settings: LocalConfig = run.backend_config
        model, temperature = loaded.model, run.config.sampling.train.temperature
        self.masters = masters
        self._loaded = loaded
        self._critic = Critic(model, settings.critic) if "values" in run.needs else None
        self._reference = _reference_of(loaded) if "ref_logprobs" in run.needs else None
        self.filler = ColumnFiller(
            model,
            temperature=temperature,
            max_tokens_per_microbatch=settings.training.tokens_per_microbatch(model.device.type),
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
        loaded, updater = self._loaded, self.updater
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
        load_state(directory, self.masters, self.updater.optimizer, self._critic, self._loaded.adapter)


def load_trainer(run: RunContext) -> tuple[LoadedModel, Trainer]:
    """Load a run's model, and create its trainer.

    Raises:
        ConfigError: an error of `load_model_to_train`, or the model cannot be the reference.
    """
    loaded, masters = load_model_to_train(run.backend_config.model, derive_seed(run.seed, "model"))
    if is_batch_invariant(run):
        fold_last_product(loaded.model)
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
    return BelowAdapter(loaded.adapter)
