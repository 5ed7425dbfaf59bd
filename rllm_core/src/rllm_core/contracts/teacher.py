"""Teachers: models that score the tokens of rollouts, for distillation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.batch import TokenBatch
    from rllm_core.data.types import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class TeacherSetup:
    """The parts of a run that a teacher may use."""

    backend: Backend
    """The run's backend, after `Backend.start`."""
    renderer: Renderer
    """The trained model's renderer. The teacher must have the same tokens."""
    temperature: float
    """The sampling temperature of the rollouts. The policy's log-probs are computed at this temperature."""
    seed: int
    """The run's seed."""


class Teacher(Protocol):
    """A model that scores token ids. It stores nothing between steps."""

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Return the log-probs, (n_token,) float32 in nats, of tokens after the earlier tokens of their row.

        Values are only read if `TokenBatch.loss_mask` is True. They must be finite there. `TokenBatch.old_logprobs` are
        filled.
        """
        ...


@runtime_checkable
class DistributionTeacher(Teacher, Protocol):
    """A teacher that also returns the likeliest tokens of each position."""

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the ids and log-probs, (n_sampled, k) each, of the k likeliest tokens at each sampled token.

        The log-probs are in nats over the whole vocabulary. Without `k`, return the whole vocabulary.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TeacherPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a teacher. Users choose it with ``--teacher`` or ``rllm.teacher``.

    `load` returns a factory that takes the options and a `TeacherSetup`. It raises ConfigError if the teacher cannot
    score the trained model's tokens.

    A teacher takes a batch of tokens and returns a log-prob for each::

        from rllm_core.contracts import Params, TeacherPlugin
        from rllm_core.plugins import hookimpl

        class UniformParams(Params):
            logprob: float = -5.0

        def load_uniform():
            import numpy as np

            class Uniform:
                def __init__(self, params, setup):
                    self.logprob = params.logprob

                async def logprobs(self, batch):
                    return np.full(len(batch.tokens), self.logprob, np.float32)

            return Uniform

        @hookimpl
        def rllm_teachers():
            yield TeacherPlugin(
                name="uniform",
                summary="All tokens are equally likely.",
                load_params=lambda: UniformParams,
                load=load_uniform,
            )
    """

    kind: ClassVar[str] = "teacher"

    load: Callable[[], Callable[[Any, TeacherSetup], Teacher]]
    check_tasks: Callable[[Any, Iterable[Task]], None] = lambda params, tasks: None
    """Takes the options and training tasks. Raises ConfigError if it cannot score a task."""
    distributions: bool = False
    """True if the teacher is a `DistributionTeacher`. Stages such as `topk_kl` need one."""
