"""Options of the reward `model`, and a check of them that needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError
from rllm_local.model_name import TINY, directory_of
from rllm_local.settings import DEVICE
from rllm_local.teacher_options import TeacherModelParams, list_weights


class RewardModelParams(Params):
    """Options of the reward ``model``."""

    path: str = Field(description="Directory or hub id of a sequence classifier with one output.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Type of weights and activations.")
    device: str = Field(
        "auto",
        pattern=f"^({DEVICE})$",
        description="`cpu`, `cuda`, `cuda:1`, … `auto`: use cuda if available, else cpu.",
    )
    batch_size: int = Field(
        1,
        ge=1,
        description="Maximum number of conversations per forward pass. A larger value is faster on a GPU. The last "
        "digits of scores then depend on the conversations of the pass, so a resumed run is not equal bit by bit.",
    )


def check_reward_model(params: RewardModelParams) -> None:
    """Raise ConfigError if `path` is a path without a model, or `tiny`, which is no reward model."""
    with errors_of_reward_model():
        directory_of("./tiny" if params.path == TINY else params.path)


def list_reward_weights(params: RewardModelParams) -> dict[str, str]:
    """Return the names and hashes of the model's files, as `list_weights`."""
    with errors_of_reward_model():
        return list_weights(TeacherModelParams(path=params.path))


@contextmanager
def errors_of_reward_model() -> Iterator[None]:
    """Give errors about ``model.name`` the reward's option."""
    try:
        yield
    except ConfigError as error:
        hint = error.hint.replace("model.name", "its option `path`")
        if error.code == "model-not-loadable":
            hint = "Use the directory or hub id of a reward model. `rllm prefer --loss reward_model` trains one."
        raise ConfigError(error.code, error.message.replace("model.name=", "reward model: path="), hint) from error
