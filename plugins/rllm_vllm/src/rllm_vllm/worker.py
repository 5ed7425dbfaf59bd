"""What runs inside vLLM's workers, called by `collective_rpc`: weights in place, log-probs before truncation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rllm_vllm.full_logprobs import record_before_truncation


class RllmWorker:
    """Methods that vLLM adds to its worker class (``worker_extension_cls``)."""

    model_runner: Any
    vllm_config: Any

    def rllm_prepare(self) -> bool:
<<<<<<< HEAD
        """Let log-probs be those of softmax(logits / temperature) also where top-p or top-k truncate.

        vLLM's ``processed_logprobs`` are those of what remains. False: this worker's sampler is another one, and the
        server then reports log-probs as unknown where top-p or top-k truncate.
        """
        truncate = getattr(getattr(self.model_runner, "sampler", None), "topk_topp_sampler", None)
        if truncate is None:
            return False
        sample = truncate.forward

        def sample_with_full_logprobs(
            logits: torch.Tensor, generators: Any, top_k: Any, top_p: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            # Before, since what follows changes the logits where they are.
            logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
            return sample(logits, generators, top_k, top_p)[0], logprobs

        truncate.forward = sample_with_full_logprobs
        return True
=======
        """Record log-probs as the contract of engines says; see `record_before_truncation`."""
        return record_before_truncation(self.model_runner)
>>>>>>> ad896f8 (The engine vllm records log-probs before truncation with vLLM's model runner V2, the default on GPUs)

    def rllm_load_weights(self, folder: str) -> None:
        """Put all weights of the files in `folder` in place; raises when some are missing or do not fit."""
        from vllm.config import set_current_vllm_config

        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            loaded = model.load_weights(_tensors(Path(folder)))
        missing = sorted({name for name, _ in model.named_parameters()} - set(loaded or ()))
        if loaded is not None and missing:
            raise ValueError(f"{len(missing)} weights of the model were not given, such as {missing[0]}")


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  (the file is no mapping)
                yield name, file.get_tensor(name)
