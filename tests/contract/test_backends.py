"""Our backends are held to the contract of backends, with the smallest model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any, ClassVar

from rllm_plugin_kit import BackendContract

TINY = {"model": {"name": "tiny", "device": "cpu"}, "training": {"learning_rate": 0.01}}
OFFLINE = {
    "tinker_base_url": "local",
    "model": {"name": "tiny"},
    "training": {"learning_rate": 0.01, "default_local_dir": f"{tempfile.gettempdir()}/rllm-tinker-contract"},
}

globals().update(BackendContract.for_each("rllm-local", local={"options": (TINY,)}))
globals().update(BackendContract.for_each("rllm-tinker", tinker={"options": (OFFLINE,)}))


class TestLocalInAsynchronousRuns(BackendContract):
    """In the process that samples. Other tests start the training process of `local`."""

    name = "rllm-local/local"
    options = ({**TINY, "local": {"training_process": False}},)
    config: ClassVar[Mapping[str, Any]] = {
        "rllm": {"async_training": {"enable": True, "staleness_threshold": 1, "partial_rollout": True}}
    }
