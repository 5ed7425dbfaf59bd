"""`uniform`: each task once per epoch."""

from __future__ import annotations

from rllm.builtin.samplers.passes import shuffled
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.sampler import Sampler, SamplerSetup


class Uniform(Sampler):
    """Each task once per epoch, in a new random order. The last batch of an epoch may be smaller."""

    def __init__(self, params: NoParams, setup: SamplerSetup) -> None:
        self._setup = setup

    def draw(self, batch: int) -> list[int]:
        tasks, size = len(self._setup.tasks), self._setup.batch_size
        epoch, place = divmod(batch, -(-tasks // size))
        order = shuffled(tasks, self._setup.seed, epoch)
        return [int(position) for position in order[place * size : (place + 1) * size]]
