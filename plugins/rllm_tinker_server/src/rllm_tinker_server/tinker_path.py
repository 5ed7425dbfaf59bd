"""Names of checkpoints, ``tinker://<model id>/<kind>/<name>``, and their folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from rllm_tinker_server.messages import RequestRefused

Kind = Literal["weights", "sampler_weights", "external_weights"]
KINDS: tuple[Kind, ...] = ("weights", "sampler_weights", "external_weights")
EXTERNAL: Kind = "external_weights"
"""For other programs: what they download, and no model here is made from."""

_SCHEME = "tinker://"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MODEL_ID = re.compile(r"[A-Za-z0-9-]{1,64}:train:[0-9]{1,9}")
_MODEL_DIRECTORY = re.compile(r"[A-Za-z0-9-]{1,64}\.train\.[0-9]{1,9}")


@dataclass(frozen=True)
class TinkerPath:
    """A validated name of a checkpoint. It is safe to join it to a folder."""

    model_id: str
    kind: Kind
    name: str

    def __post_init__(self) -> None:
        if not _MODEL_ID.fullmatch(self.model_id):
            raise RequestRefused(f"{self.model_id!r} is not the id of a model, such as 0f1e…:train:0.")
        if self.kind not in KINDS:
            raise RequestRefused(f"{self.kind!r} is not a kind of checkpoint; kinds are {', '.join(KINDS)}.")
        if not is_name(self.name):
            raise RequestRefused(
                f"{self.name[:200]!r} cannot name a checkpoint: use 1 to 128 letters, digits, '.', '_' and '-', "
                "the first of them not a dot."
            )

    @classmethod
    def parse(cls, text: str) -> TinkerPath:
        """Read ``tinker://…``; raises RequestRefused."""
        parts = text.removeprefix(_SCHEME).split("/")
        if not text.startswith(_SCHEME) or len(parts) != 3:
            raise RequestRefused(
                f"{text[:200]!r} is not the path of a checkpoint, such as tinker://MODEL_ID/weights/NAME."
            )
        return cls(parts[0], cast(Kind, parts[1]), parts[2])

    def of_a_model(self) -> TinkerPath:
        """The same; raises RequestRefused when no model is made from it."""
        if self.kind == EXTERNAL:
            raise RequestRefused(
                f"{self} is an export for other programs. Load what save_state or save_weights_for_sampler saved."
            )
        return self

    def __str__(self) -> str:
        return f"{_SCHEME}{self.model_id}/{self.checkpoint_id}"

    @property
    def checkpoint_id(self) -> str:
        return f"{self.kind}/{self.name}"

    def below(self, root: Path) -> Path:
        """The checkpoint's folder."""
        return root / self.model_id.replace(":", ".") / self.kind / self.name


def is_name(text: str) -> bool:
    """True if this is a valid checkpoint name. Names with a leading dot are reserved for this server's hidden files."""
    return _NAME.fullmatch(text) is not None and not text.startswith(".")


def model_of_directory(name: str) -> str | None:
    """Return the model whose checkpoints are in a folder of this name. None if the folder has no checkpoints."""
    return name.replace(".", ":") if _MODEL_DIRECTORY.fullmatch(name) else None
