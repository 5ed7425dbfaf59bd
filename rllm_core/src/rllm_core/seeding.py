"""Every random draw is a function of the run's seed and of where it happens, so a resumed run needs no saved state."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *place: str | int) -> int:
    """A 63-bit seed for one place, such as ``derive_seed(seed, "rollout", step, task_id, rollout_idx)``.

    The same arguments give the same seed on every machine; places never share a stream.
    """
    digest = hashlib.blake2b(repr((seed, *place)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
