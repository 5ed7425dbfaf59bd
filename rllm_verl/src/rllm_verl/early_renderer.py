"""A run's renderer and context before the cluster starts, for ``--dry-run``."""

from __future__ import annotations

from pathlib import Path

from rllm_backend_kit.model_files import model_directory, silence_transformers
from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.renderer import Renderer
from rllm_verl.fetching import holds_parts
from rllm_verl.model import TINY, open_directory
from rllm_verl.native import native_config
from rllm_verl.settings import VerlConfig


def early_renderer(run: RunContext) -> tuple[Renderer, int] | None:
    """Return the run's renderer and longest context. None if the model is not a Hugging Face directory on this machine.

    Raises:
        ConfigError: the model cannot be trained with the run's settings, or the renderer does not support it.
    """
    settings: VerlConfig = run.backend_config
    name = settings.actor_rollout_ref["model"]["path"]
    path = Path(name).expanduser()
    directory = None if name == TINY or holds_parts(path) else model_directory(path)
    if directory is None:
        return None
    silence_transformers()
    model = open_directory(directory, digest="", without_thinking=run.config.rllm.disable_thinking)
    native = native_config(settings, model, run.total_steps, run.needs)
    return make_renderer(run, model.rendering), native.actor_rollout_ref.rollout.max_model_len
