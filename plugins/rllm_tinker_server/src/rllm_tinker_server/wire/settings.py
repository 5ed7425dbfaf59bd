"""The settings inside JSON requests, checked by tinker's own types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel as PydanticModel, ValidationError
from tinker import types

from rllm_tinker_server.messages import AdamStep, LoraSpec, RequestRefused

M = TypeVar("M", bound=PydanticModel)


def read(message: type[M], found: Mapping[str, Any]) -> M:
    """Settings in tinker's own type. An unknown key is refused: ignoring it would do something else than was asked for.

    Raises:
        RequestRefused: with the first problem.
    """
    try:
        return message.model_validate(found)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise RequestRefused(f"{message.__name__}: {where}: {problem['msg']}.") from error


def lora_spec(found: Mapping[str, Any]) -> LoraSpec:
    """The adapter of a `create_model` request. Raises RequestRefused: only LoRA models can be trained."""
    if not isinstance(found.get("lora_config"), dict):
        raise RequestRefused("lora_config is missing: this server trains LoRA models only.")
    config = read(types.LoraConfig, found["lora_config"])
    if config.rank < 1:
        raise RequestRefused(f"The LoRA rank is {config.rank}; it must be 1 or more.")
    if not (config.train_mlp or config.train_attn or config.train_unembed):
        raise RequestRefused("train_mlp, train_attn and train_unembed are all false: nothing would be trained.")
    return LoraSpec(**config.model_dump())


def check_optimizer(found: Mapping[str, Any]) -> None:
    """Raise RequestRefused unless the optimizer is AdamW. Clients before about 0.30 do not send this setting."""
    config = found.get("optimizer_config")
    if config is not None and (not isinstance(config, dict) or config.get("type", "adamw") != "adamw"):
        raise RequestRefused(f"optimizer_config is {config!r}: this server has the optimizer adamw only.")


def adam_step(found: Mapping[str, Any]) -> AdamStep:
    """The settings of an `optim_step` request."""
    config = found.get("adam_params", found.get("optim_params"))
    if not isinstance(config, dict):
        raise RequestRefused("adam_params are missing: this server has the optimizer adamw only.")
    params = read(types.AdamParams, config)
    values = params.model_dump()
    wrong = [f"{key}={value!r}" for key, value in values.items() if not math.isfinite(value) or value < 0]
    wrong += [f"{key}={values[key]!r}" for key in ("beta1", "beta2") if values[key] >= 1]
    if wrong:
        raise RequestRefused(f"adam_params: {', '.join(wrong)}: must be finite, not negative, betas below 1.")
    return AdamStep(**values)
