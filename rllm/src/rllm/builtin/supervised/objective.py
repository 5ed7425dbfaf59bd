"""The rows of `rllm sft`, and the checks of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm.builtin.supervised.turns import ExamplesParams
from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused
from rllm.planning.row_objective import RowObjective
from rllm_core.contracts.params import Params

if TYPE_CHECKING:
    from rllm.rows.example import Conversation, PlainText
    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.engine import RolloutEngine
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.types import Episode, Task


class ImitationObjective(RowObjective):
    """Fine-tuning on conversations and text: the loss is the mean of -log p over the trained tokens."""

    activity = "fine-tuning"

    @property
    def params(self) -> ExamplesParams:
        found = (stage.params for stage in self.plan.stages if isinstance(stage.params, ExamplesParams))
        return next(found, ExamplesParams())

    def read(self, data: Mapping[str, Any]) -> list[Conversation | PlainText]:
        from rllm.builtin.supervised.rows import read_row

        return [read_row(data)]

    def used_columns(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        from rllm.builtin.supervised.rows import used_columns

        return used_columns(data)

    def check_rendered(self, example: Conversation | PlainText, renderer: Renderer) -> None:
        from rllm.builtin.supervised.turns import make_turns

        make_turns(example, renderer, self.params)

    def make_episodes(self, task: Task, renderer: Renderer) -> list[Episode]:
        from rllm.builtin.supervised.stages import make_examples

        return make_examples(task, renderer, self.params)

    async def validate(self, backend: Backend, engine: RolloutEngine, tasks: Sequence[Task]) -> dict[str, float]:
        from rllm.builtin.supervised.stages import validate_examples

        return await validate_examples(backend, engine, tasks, self.plan.config.data.val_batch_size, self.params)


LOSS = "rllm.algorithm.loss_fn"


def check_imitation(plan: RunPlan, params: Params) -> Iterator[Problem]:
    """Check a run with stage `supervise`."""
    if plan.rows is None:
        return
    for loss in (entry.plugin for entry in plan.losses):
        if loss.has_ratio or loss.needs:
            yield refused(
                "loss-needs-rollouts",
                LOSS,
                f"Loss {loss.name!r} compares with the policy that sampled the tokens, and examples have none.",
                f"Set {LOSS}=cross_entropy, or remove the key.",
            )
    yield from check_no_rollouts(plan)


def check_no_rollouts(plan: RunPlan) -> Iterator[Problem]:
    """Check that no key is set that needs a policy that sampled the tokens."""
    algorithm = plan.config.rllm.algorithm
    set_to = {
        "rllm.algorithm.kl_beta": algorithm.kl_beta != 0,
        "rllm.algorithm.entropy.coeff": algorithm.entropy.coeff != 0,
        "rllm.algorithm.entropy.final_coeff": algorithm.entropy.decay_steps != 0,
        "rllm.algorithm.rollout_correction": algorithm.rollout_correction.is_active,
        "rllm.async_training": plan.config.rllm.async_training.staleness != 0,
        "sampling.train.temperature": plan.config.sampling.train.temperature != 1,
        "rllm.trainer.val_only": plan.config.rllm.trainer.val_only,
    }
    for key in (key for key, has_effect in set_to.items() if has_effect):
        yield refused(
            "not-for-examples",
            key,
            f"{key} is set, and learning from examples does not support it: it has no rollouts.",
            f"Remove {key}, or train with rewards: `rllm train`.",
        )
