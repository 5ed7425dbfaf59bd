"""Code in the workers of verl's vLLM servers: it reports which weights they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from rllm_backend_kit.weight_comparison import vllm_digests


class RllmWorker(vLLMColocateWorkerExtension):  # type: ignore[misc]  # verl is not typed
    """verl's extension of vLLM's worker class, with one more method."""

    model_runner: Any
    rank: int

    def rllm_write_digests(self, directory: str) -> None:
        """Write the digests of this worker's tensors into a directory, because verl's servers return no results."""
        Path(directory, f"{self.rank}.json").write_text(json.dumps(vllm_digests(self.model_runner.get_model())))
