"""Whether saved weights are those of the model that the configuration describes."""

from __future__ import annotations

from rllm_core.errors import ConfigError
from rllm_tinker.exchange import SavedModel
from rllm_tinker.settings import ModelSection

FLAGS = ("lora_rank", "train_unembed", "train_attn", "train_mlp")


def check_saved_model(saved: SavedModel, path: str, model: ModelSection, base_model: str) -> None:
    """Compare with the configuration, whose LoRA keys do not matter while they have their defaults.

    Raises:
        ConfigError: the weights are of another base model, or of another LoRA than was asked for.
    """
    if saved.base_model != base_model:
        raise ConfigError(
            "checkpoint-of-other-model",
            f"{path} was trained on base model {saved.base_model!r}, and model.name is {base_model!r}.",
            f"Set model.name={saved.base_model}.",
        )
    for name in FLAGS:
        asked, has = getattr(model, name), getattr(saved, name)
        if has is not None and asked != has and asked != type(model).model_fields[name].default:
            raise ConfigError(
                "adapter-mismatch",
                f"model.{name} is {asked}, and {path} has {has}: a saved LoRA model keeps its shape.",
                f"Leave model.{name} out, or start from the base model.",
            )
