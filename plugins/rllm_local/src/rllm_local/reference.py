"""The reference model of the KL divergence: the model as the run found it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from rllm_core.errors import CheckpointError
from rllm_local.fingerprints import fingerprint
from rllm_local.lora import Adapter

REFERENCE = "reference.json"


class Reference:
    """A frozen copy of the model that ``model.name`` stands for.

    A resumed run copies that model again, before the checkpoint's weights are loaded. The checkpoint holds its
    fingerprint and not the model, which may be large: what `model.name` points to must be there for the whole run.
    """

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    @contextmanager
    def answering(self) -> Iterator[Any]:
        """The model that answers as the reference does."""
        yield self.model

    @cached_property
    def fingerprint(self) -> str:
        """See `fingerprint`."""
        return fingerprint(self.model)

    def save(self, directory: Path) -> None:
        (directory / REFERENCE).write_text(json.dumps({"sha256": self.fingerprint}), encoding="utf-8")

    def check(self, directory: Path) -> None:
        """Compare with what `save` wrote; a checkpoint of a run without a reference has nothing to compare with.

        Raises:
            CheckpointError: `model.name` has become another model.
        """
        file = directory / REFERENCE
        if file.exists() and json.loads(file.read_text(encoding="utf-8"))["sha256"] != self.fingerprint:
            raise CheckpointError(
                "reference-changed",
                f"model.name does not stand for the model that the run of {directory} started with, and that model is "
                "its reference for rllm.algorithm.kl_beta.",
                "Put the model back where model.name says, or start a new run.",
            )


class BelowAdapter(Reference):
    """The model that is trained, its LoRA adapter switched off: no copy is needed."""

    def __init__(self, adapter: Adapter) -> None:
        self.model = adapter.model
        self._adapter = adapter

    @contextmanager
    def answering(self) -> Iterator[Any]:
        with self._adapter.switched_off():
            yield self.model

    @cached_property
    def fingerprint(self) -> str:
        sha256 = self._adapter.base.sha256
        assert sha256 is not None
        return sha256
