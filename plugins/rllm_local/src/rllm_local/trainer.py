"""The half of the backend that trains: what is computed with the model's weights, moves them, and keeps them.

It knows nothing of sampling, and may run in another process than what samples.
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
    """A model with all that trains it: optimiser, critic and reference. To be used on one thread.

    `updater` makes the updates, and `filler` computes the columns that they need.
    """

    def __init__(self, run: RunContext, loaded: LoadedModel, masters: Masters) -> None:
        """Take the model as it is now as the reference, where the run needs one.

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
        """Write what `load` reads into an existing empty folder."""
        loaded, updater = self._loaded, self.updater
        save_state(directory, self.masters, loaded.tokenizer, updater.optimizer, self._critic, loaded.adapter)
        if self._reference is not None:
            self._reference.save(directory)

    def load(self, directory: Path) -> None:
        """Put back what `save` wrote.

        Raises:
            CheckpointError: it is of another model, or of another run.
        """
        if self._reference is not None:
            self._reference.check(directory)
        load_state(directory, self.masters, self.updater.optimizer, self._critic, self._loaded.adapter)


def load_trainer(run: RunContext) -> tuple[LoadedModel, Trainer]:
    """Load the model of a run, and make what trains it.

    Raises:
        ConfigError: as `load_model_to_train`; or the model cannot be the reference.
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
            "model.name is a LoRA adapter that this run trains on, and rllm.algorithm.kl_beta needs the model as the "
            "run found it, which is not the model below the adapter.",
            "Merge the adapter first and start from that: rllm export RUN --to merged.",
        )
    return BelowAdapter(loaded.adapter)
