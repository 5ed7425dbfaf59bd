"""The samplers of several versions of the weights: what rounds that are played ahead began with, and the newest."""

from __future__ import annotations

from rllm_core.errors import RolloutError
from rllm_tinker.client import Sampler


class ServedSamplers:
    """One sampler for each of the versions that were published last."""

    def __init__(self, *, versions: int) -> None:
        """Start with none. `versions`: how many are served at a time."""
        self._versions = versions
        self._samplers: dict[int, Sampler] = {}

    def sync_weights(self, sampler: Sampler, version: int) -> None:
        """Serve a version. Those that are too old go; requests under way keep their sampler."""
        self._samplers[version] = sampler
        for old in [each for each in self._samplers if each <= version - self._versions]:
            del self._samplers[old]

    def find(self, version: int | None) -> tuple[int, Sampler]:
        """A version and its sampler. None: the newest.

        Raises:
            RolloutError: that version is not served any more.
        """
        found = max(self._samplers) if version is None else version
        if found not in self._samplers:
            served = ", ".join(map(str, sorted(self._samplers)))
            raise RolloutError("weights-gone", f"Version {found} of the weights is not served; {served} are.")
        return found, self._samplers[found]
