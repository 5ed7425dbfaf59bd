"""What can be seen to be wrong with the backend's configuration before anything is loaded or connected."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_tinker.settings import DEFAULT_LOCAL_DIR, LOCAL, TinkerConfig
from rllm_tinker.state import state_named_by

CHECKPOINT = re.compile(r"tinker://[^/\s]+/weights/[^/\s]+")
TRAINING_RUN = re.compile(r"[^/\s]+")


def check_config(config: TinkerConfig) -> None:
    """Raise ConfigError for values that cannot work, or that nothing would act on."""
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
            f"rollout_engine.renderer_name is {config.rollout_engine.renderer_name!r}, and renderers are not chosen by "
            "name here: messages become tokens by the tokenizer's chat template.",
            "Leave it out; for another template set model.tokenizer to a folder whose tokenizer_config.json has it.",
        )
    resume = training.resume_from_tinker_id
    if resume is not None and not (CHECKPOINT.fullmatch(resume) or TRAINING_RUN.fullmatch(resume)):
        raise ConfigError(
            "bad-tinker-checkpoint",
            f"training.resume_from_tinker_id is {resume!r}, which is neither a checkpoint nor a training run.",
            "Checkpoints are written tinker://RUN/weights/NAME (sampler_weights hold no optimiser state); training "
            "runs are written RUN.",
        )


def check_run(run: RunConfig, config: TinkerConfig) -> None:
    """Raise ConfigError where the run pins weights that the service changes in place."""
    if run.rllm.trainer.val_only or not run.rllm.async_training.pins_weights:
        return
    if config.rollout_engine.weights == "inflight":
        raise ConfigError(
            "weights-not-pinned",
            "rollout_engine.weights is inflight, and `rllm.async_training.partial_rollout` is false: each round is "
            "sampled by one version of the weights. The service changes inflight weights in place, older ones are "
            "gone, and nobody knows which version sampled what.",
            "Leave rollout_engine.weights out (snapshot), or set rllm.async_training.partial_rollout=true.",
        )


def _check_model_directory(name: str) -> None:
    """Said at once what the server would say after it has loaded torch."""
    from rllm_backend_kit.model_files import path_or_hub_id
    from rllm_local.model_name import TINY, directory_of

    path_or_hub_id("model.name", name)
    if name != TINY and state_named_by(name) is None:
        directory_of(name)


def check_url(url: str, where: str) -> None:
    """Raise ConfigError for what is no URL of a web server; `where` it was read is said."""
    if not _is_url(url):
        raise ConfigError(
            "bad-address",
            f"{where} is {url!r}, which is no URL.",
            "Write http://127.0.0.1:8017 for a server of your own, or set tinker_base_url=local to have one started; "
            "without either the service is meant.",
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
            f"training.default_local_dir is {config.training.default_local_dir!r} and has no effect: it is where the "
            f"server of tinker_base_url=local keeps checkpoints, and tinker_base_url is {config.tinker_base_url}.",
            "Leave it out, or set tinker_base_url=local.",
        )
