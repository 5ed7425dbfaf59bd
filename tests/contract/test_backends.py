"""Our backends keep the contract of backends, with the smallest model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from tinker_in_process import running_server

from rllm_plugin_kit import BackendContract
from rllm_tinker_server.serve import ModelOptions, open_service

TINY = {"model": {"name": "tiny", "device": "cpu"}, "training": {"learning_rate": 0.01}}
globals().update(BackendContract.for_each("rllm-local", local={"options": (TINY,)}))


class TestTinker(BackendContract):
    """The server runs on a thread. `rllm_tinker/tests/faults` starts the server as a process of the run."""

    name = "rllm-tinker/tinker"
    options = ({"model": {"name": "tiny"}, "training": {"learning_rate": 0.01}},)
    url: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def serve(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        options = ModelOptions(model="tiny", checkpoints=tmp_path_factory.mktemp("checkpoints"))
        with pytest.MonkeyPatch.context() as patch, open_service(options) as service:
            patch.setenv("TINKER_API_KEY", "tml-test")
            with running_server(service) as running:
                cls.url = running.url
                yield

    def params_from(self, options: Mapping[str, Any]) -> Any:
        return super().params_from({**options, "tinker_base_url": self.url})


class TestLocalInAsynchronousRuns(BackendContract):
    """Train in the process that samples. Other tests start the training process of `local`."""

    name = "rllm-local/local"
    options = ({**TINY, "local": {"training_process": False}},)
    config: ClassVar[Mapping[str, Any]] = {
        "rllm": {"async_training": {"enable": True, "staleness_threshold": 1, "partial_rollout": True}}
    }
