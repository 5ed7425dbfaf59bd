"""Creates a run's engines, on the loaded model and on copies of it."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from rllm_backend_kit.grammars import Grammars
from rllm_backend_kit.renderers import make_renderer, options_without_thinking
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.seeding import derive_seed
from rllm_local.engine import LocalEngine
from rllm_local.kv_cache import PassShape
from rllm_local.memory import GIB
from rllm_local.model import LoadedModel, check_max_length, load_model_to_sample
from rllm_local.same_bits import fold_last_product, is_batch_invariant
from rllm_local.settings import LocalConfig


def load_to_sample(run: RunContext) -> LoadedModel:
    """Load the model of `load_trainer` in a process that only samples. It raises the same ConfigErrors."""
    loaded = load_model_to_sample(run.backend_config.model, derive_seed(run.seed, "model"))
    if is_batch_invariant(run):
        fold_last_product(loaded.model)
    return loaded


class Engines:
    """Creates engines that share a renderer, a context length and the memory for keys and values."""

    def __init__(self, run: RunContext, loaded: LoadedModel, executor: Executor, shape: PassShape) -> None:
        """Prepare the shared parts. `executor` runs the engines' forward passes, which have `shape`.

        Raises:
            ConfigError: the renderer or the model's rope does not support the run's settings.
        """
        settings: LocalConfig = run.backend_config
        thinking = options_without_thinking(loaded.tokenizer) if run.config.rllm.disable_thinking else {}
        self.renderer = make_renderer(
            run,
            RendererSetup(
                name=settings.model.name,
                tokenizer=loaded.tokenizer,
                stop_ids=frozenset(loaded.stop_ids),
                template_options=thinking,
            ),
        )
        check_max_length(settings.model.name, settings.training.max_length, loaded.rope_changes_beyond)
        self.max_context = min(loaded.max_context, settings.training.max_length)
        self._settings = settings.local
        self._versions = run.versions_served
        self._executor = executor
        self._shape = shape
        # Copies of the model share the grammars, because the library's tokenizer takes seconds to build and tens of MB.
        vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
        self._grammars = Grammars(loaded.tokenizer, vocabulary, self.renderer)

    def on(self, model: Any) -> LocalEngine:
        """Return an engine on the loaded model or on a copy of it."""
        return LocalEngine(
            model,
            self.renderer,
            self._executor,
            max_context=self.max_context,
            max_concurrency=self._settings.max_concurrency,
            kv_cache_bytes=int(self._settings.kv_cache_gib * GIB / self._versions),
            shape=self._shape,
            grammars=self._grammars,
        )
