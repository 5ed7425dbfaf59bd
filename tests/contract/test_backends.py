"""The backend `local` is held to the contract of backends, with its smallest model."""

from __future__ import annotations

from rllm_core.testing import BackendContract

TINY = {"model": {"name": "tiny", "device": "cpu"}, "training": {"learning_rate": 0.01}}

globals().update(BackendContract.for_each("rllm-local", local={"options": (TINY,)}))
