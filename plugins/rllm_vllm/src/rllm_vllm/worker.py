"""Code that runs in vLLM's workers, called with `collective_rpc`: load weights, and record log-probs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rllm_vllm.constraints import constrain
from rllm_vllm.full_logprobs import record_before_truncation
from rllm_vllm.tokenizer import Marks, load_grammars


class RllmWorker:
    """Methods that vLLM adds to its worker class (``worker_extension_cls``)."""

    model_runner: Any
    vllm_config: Any

    def rllm_prepare(self) -> bool:
        """Record log-probs as the engine contract requires. See `record_before_truncation`."""
        return record_before_truncation(self.model_runner)

    def rllm_constrain(self, stop_ids: Sequence[int], reasoning_ids: Sequence[int] | None) -> bool:
        """Constrain responses to JSON schemas. See `constrain`. The arguments are the fields of `Marks`."""
        reasoning = None if reasoning_ids is None else (reasoning_ids[0], reasoning_ids[1])
        marks = Marks(tuple(stop_ids), reasoning)
        return constrain(self.model_runner, load_grammars(self.vllm_config.model_config, marks))

    def rllm_load_weights(self, directory: str) -> None:
        """Load all weights in place from the files in `directory`.

        Raises:
            ValueError: weights are missing, or do not fit.
        """
        from vllm.config import set_current_vllm_config

        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            loaded = model.load_weights(_tensors(Path(directory)))
        missing = sorted({name for name, _ in model.named_parameters()} - set(loaded or ()))
        if loaded is not None and missing:
            raise ValueError(f"{len(missing)} weights of the model were not given, such as {missing[0]}")


def _tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  (the file is no mapping)
                yield name, file.get_tensor(name)
