"""The reference model of the KL divergence: the model with which the run started."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from rllm_core.errors import CheckpointError
from rllm_local.lora import Adapter
from rllm_local.weights import fingerprint

REFERENCE = "reference.json"


class Reference:
    """A frozen copy of the model from ``model.name``.

    A resumed run copies that model again before it loads the checkpoint's weights. The checkpoint contains only the
    model's fingerprint, because the model can be large. So the files of `model.name` must exist for the whole run.
    """

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    @contextmanager
    def reference_outputs(self) -> Iterator[Any]:
        """Yield the model with the reference's outputs."""
        yield self.model

    @cached_property
    def fingerprint(self) -> str:
        """The model's fingerprint; see `fingerprint`."""
        return fingerprint(self.model)

    def save(self, directory: Path) -> None:
        (directory / REFERENCE).write_text(json.dumps({"sha256": self.fingerprint}), encoding="utf-8")

    def check(self, directory: Path) -> None:
        """Compare with the fingerprint that `save` wrote. A checkpoint without a reference is not checked.

        Raises:
            CheckpointError: `model.name` is now a different model.
        """
        file = directory / REFERENCE
        if file.exists() and json.loads(file.read_text(encoding="utf-8"))["sha256"] != self.fingerprint:
            raise CheckpointError(
                "reference-changed",
                f"model.name is not the model with which the run of {directory} started, but that model is the "
                "reference for rllm.algorithm.kl_beta.",
                "Restore that model at model.name, or start a new run.",
            )


class AdapterBaseReference(Reference):
    """The trained model with its LoRA adapter switched off. No copy is needed."""

    def __init__(self, adapter: Adapter) -> None:
        self.model = adapter.model
        self._adapter = adapter

    @contextmanager
    def reference_outputs(self) -> Iterator[Any]:
        with self._adapter.switched_off():
            yield self.model

    @cached_property
    def fingerprint(self) -> str:
        sha256 = self._adapter.base.sha256
        assert sha256 is not None
        return sha256
