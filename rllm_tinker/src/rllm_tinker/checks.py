"""Checks of the backend's configuration and of its API key that need no loaded model and no connection."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rllm_core.errors import ConfigError
from rllm_tinker.settings import DEFAULT_LOCAL_DIR, LOCAL, TinkerConfig
from rllm_tinker.state import state_named_by

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

CHECKPOINT = re.compile(r"tinker://[^/\s]+/weights/[^/\s]+")
TRAINING_RUN = re.compile(r"[^/\s]+")


def check_config(config: TinkerConfig) -> None:
    """Raise ConfigError for values that cannot work or that have no effect."""
    if config.tinker_base_url not in (None, LOCAL):
        check_url(config.tinker_base_url or "", "tinker_base_url")
    _check_local_only(config)
    model, training = config.model, config.training
    if not (model.train_unembed or model.train_attn or model.train_mlp):
        raise ConfigError(
            "nothing-trained",
            "model.train_unembed, model.train_attn and model.train_mlp are all false: nothing would be trained.",
            "Set one of them to true.",
        )
    if config.rollout_engine.renderer_name is not None:
        raise ConfigError(
            "wrong-value",
            f"rollout_engine.renderer_name is {config.rollout_engine.renderer_name!r}, but rllm does not select "
            "renderers by name. It renders messages with the tokenizer's chat template.",
            "Remove the key. For a different template, set model.tokenizer to a directory whose tokenizer_config.json "
            "contains it.",
        )
    resume = training.resume_from_tinker_id
    if resume is not None and not (CHECKPOINT.fullmatch(resume) or TRAINING_RUN.fullmatch(resume)):
        raise ConfigError(
            "bad-tinker-checkpoint",
            f"training.resume_from_tinker_id is {resume!r}, which is neither a checkpoint nor a training run.",
            "Write a checkpoint as tinker://RUN/weights/NAME (sampler_weights contain no optimizer state), or a "
            "training run as RUN.",
        )


def check_run(run: RunConfig, config: TinkerConfig) -> None:
    """Raise ConfigError if the run needs fixed-version weights but the service changes its weights in place."""
    if run.rllm.trainer.val_only or not run.rllm.async_training.pins_weights:
        return
    if config.rollout_engine.weights == "inflight":
        raise ConfigError(
            "weights-not-pinned",
            "rollout_engine.weights is inflight, but `rllm.async_training.partial_rollout` is false, so one version of "
            "the weights must sample a whole rollout batch. The service overwrites inflight weights, so it cannot keep "
            "a version.",
            "Remove rollout_engine.weights (default: snapshot), or set rllm.async_training.partial_rollout=true.",
        )


def _check_model_directory(name: str) -> None:
    """Raise the error for a bad model directory now. The server would raise it only after it has loaded torch."""
    from rllm_backend_kit.model_files import path_or_hub_id
    from rllm_local.model_name import TINY, directory_of

    path_or_hub_id("model.name", name)
    if name != TINY and state_named_by(name) is None:
        directory_of(name)


def check_url(url: str, where: str) -> None:
    """Raise ConfigError if `url` is not an HTTP URL. The message contains `where`, the source of the value."""
    if not _is_url(url):
        raise ConfigError(
            "bad-address",
            f"{where} is {url!r}, which is not an HTTP URL.",
            "For your own server, write for example http://127.0.0.1:8017. Set tinker_base_url=local to start one. "
            "Remove the value to use the service.",
        )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, a port above 65535
        return False


def _check_local_only(config: TinkerConfig) -> None:
    if config.tinker_base_url == LOCAL:
        _check_model_directory(config.model.name)
    elif config.training.default_local_dir != DEFAULT_LOCAL_DIR:
        raise ConfigError(
            "unused-key",
            f"training.default_local_dir is {config.training.default_local_dir!r} and has no effect: only the server "
            f"of tinker_base_url=local stores checkpoints there, and tinker_base_url is {config.tinker_base_url}.",
            "Remove the key, or set tinker_base_url=local.",
        )


VARIABLE = "TINKER_API_KEY"
OTHER_VARIABLE = "TINKER_CREDENTIAL_CMD"
STORED = Path("~/.tinker/credentials.json")
"""The file in which `tinker auth login` stores a key."""
PREFIXES = ("tml-", "eyJ")


def api_key_for(url: str) -> str | None:
    """Return the API key for a service. None if the client finds a key elsewhere.

    Raises:
        ConfigError: the key is missing or malformed.
    """
    key = os.environ.get(VARIABLE, "").strip()
    if not key and (os.environ.get(OTHER_VARIABLE) or STORED.expanduser().is_file()):
        return None
    if not key:
        raise ConfigError(
            "missing-api-key",
            f"There is no API key for {url}: the environment variable {VARIABLE} is not set.",
            f"export {VARIABLE}=tml-…, or train offline with tinker_base_url=local.",
        )
    if not key.startswith(PREFIXES):
        raise ConfigError(
            "bad-api-key",
            f"The API key in {VARIABLE} is malformed: keys start with tml- (tokens with eyJ).",
            "Copy it again from the service's console. Your own server accepts any key that starts with tml-, unless "
            "you started it with a different key.",
        )
    return key
