"""The reference model of the KL divergence, the model as the run found it; and how a model is told from others."""

from __future__ import annotations

import copy
import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rllm_core.errors import CheckpointError

REFERENCE = "reference.json"


def fingerprint(model: Any) -> str:
    """SHA-256, hexadecimal, of all weights of a `torch.nn.Module` with their names: of 1 GB in about a second."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().flatten().view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


class Reference:
    """A frozen copy of the model that ``model.name`` stands for.

    A resumed run copies that model again, before the checkpoint's weights are loaded. The checkpoint holds its
    fingerprint and not the model, which may be large: what `model.name` points to must be there for the whole run.
    """

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    @cached_property
    def fingerprint(self) -> str:
        """See `fingerprint`."""
        return fingerprint(self.model)

    def save(self, folder: Path) -> None:
        (folder / REFERENCE).write_text(json.dumps({"sha256": self.fingerprint}), encoding="utf-8")

    def check(self, folder: Path) -> None:
        """Compare with what `save` wrote; a checkpoint of a run without a reference has nothing to compare with.

        Raises:
            CheckpointError: `model.name` has become another model.
        """
        file = folder / REFERENCE
        if file.exists() and json.loads(file.read_text(encoding="utf-8"))["sha256"] != self.fingerprint:
            raise CheckpointError(
                f"model.name does not stand for the model that the run of {folder} was started with, and that model is "
                "its reference for rllm.algorithm.kl_beta.",
                "Put the model back where model.name says, or start a new run.",
            )
