"""Seeds of all random draws. A seed depends only on the run's seed and on its place, so a resumed run needs no saved
state."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def derive_seed(seed: int, *place: str | int) -> int:
    """Return a 63-bit seed for one place, such as ``derive_seed(seed, "rollout", step, task_id, rollout_idx)``.

    The same arguments give the same seed on every machine. Different places have independent random streams.
    """
    digest = hashlib.blake2b(repr((seed, *place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def prompt_digest(prompt_ids: NDArray[np.int32]) -> str:
    """Return a digest of a prompt, (n,) int32, as 32 hexadecimal digits."""
    return hashlib.blake2b(prompt_ids.astype("<i4", copy=False).tobytes(), digest_size=16).hexdigest()


def call_seed(rollout_seed: int, digest: str, sibling: int = 0) -> int:
    """Return the seed of one model call, by `prompt_digest`. `sibling` numbers a rollout's calls with the same
    prompt."""
    return derive_seed(rollout_seed, digest, sibling)
