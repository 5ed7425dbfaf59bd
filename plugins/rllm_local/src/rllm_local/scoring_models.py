"""Options of the teacher `model` and the reward `model`, and checks of them that need no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError
from rllm_core.files import sha256
from rllm_local.adapter_files import adapter_directory, read_base
from rllm_local.model_name import TINY, directory_of
from rllm_local.settings import DEVICE, ModelSection

OF_MODEL = (".safetensors", ".bin", ".json")
"""Suffixes of a model's files."""
HASH_DIGITS = 16


class TeacherModelParams(Params):
    """Options of the teacher ``model``."""

    path: str
    """`tiny`, a Hugging Face directory or hub id, or a checkpoint of a run."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of weights and activations."""
    device: str = Field("auto", pattern=f"^({DEVICE})$")
    """`cpu`, `cuda`, `cuda:1`, … `auto`: use cuda if available, else cpu."""
    max_tokens_per_microbatch: int = Field(2048, gt=0)
    """Tokens per forward pass."""

    @property
    def section(self) -> ModelSection:
        """The same values for the function that loads models."""
        return ModelSection(name=self.path, dtype=self.dtype, device=self.device)


def check_teacher(params: TeacherModelParams) -> None:
    """Raise ConfigError if `path` is a path without a model."""
    if params.path != TINY and adapter_directory(params.path) is None:
        with rename_key_in_errors():
            directory_of(params.path)


def list_weights(params: TeacherModelParams) -> dict[str, str]:
    """Return `path` with the names and hashes of the model's files, one per line. Empty for `tiny` and hub ids.

    1 GB takes about a second.

    Raises:
        ConfigError: `path` is a path without a model.
    """
    adapter = adapter_directory(params.path)
    base = params.path if adapter is None else read_base(adapter).name
    with rename_key_in_errors():
        directories = [adapter, None if base == TINY else directory_of(base)]
    files = [file for directory in directories if directory is not None for file in sorted(directory.iterdir())]
    lines = [f"{file.name} {sha256(file)[:HASH_DIGITS]}" for file in files if file.suffix in OF_MODEL]
    return {params.path: "\n".join(lines)} if lines else {}


@contextmanager
def rename_key_in_errors() -> Iterator[None]:
    """Give errors about ``model.name`` the teacher's key."""
    try:
        yield
    except ConfigError as error:
        message = error.message.replace("model.name=", "rllm.teacher.path=")
        raise ConfigError(error.code, message, error.hint.replace("model.name", "rllm.teacher.path")) from error


class RewardModelParams(Params):
    """Options of the reward ``model``."""

    path: str
    """Directory or hub id of a sequence classifier with one output."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of weights and activations."""
    device: str = Field("auto", pattern=f"^({DEVICE})$")
    """`cpu`, `cuda`, `cuda:1`, … `auto`: use cuda if available, else cpu."""
    batch_size: int = Field(1, ge=1)
    """Maximum number of conversations per forward pass. A larger value is faster on a GPU. The last digits of scores
    then depend on the conversations of the pass, so a resumed run is not equal bit by bit."""


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
