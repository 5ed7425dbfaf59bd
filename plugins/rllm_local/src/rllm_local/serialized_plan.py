"""An update plan in the form in which it is sent to the training process: with its losses by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module

from rllm_backend_kit.named_loss import NamedLoss
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.errors import LossError, RllmError

MAIN = "__main__"


@dataclass(frozen=True)
class SerializedPlan:
    """An update plan as plain data."""

    plan: UpdatePlan
    """The plan without its losses."""
    losses: Mapping[str, NamedLoss]
    """The loss for each role."""
    modules: tuple[str, ...]
    """Modules that define the losses. Importing them registers the program's own losses."""

    @classmethod
    def from_plan(cls, plan: UpdatePlan) -> SerializedPlan:
        """Convert a plan to plain data."""
        losses = {role: NamedLoss.from_choice(choice) for role, choice in plan.losses.items()}
        functions = [choice.registered.load() for choice in plan.losses.values()]
        modules = dict.fromkeys(str(getattr(function, "__module__", None) or MAIN) for function in functions)
        return cls(replace(plan, losses={}), losses, tuple(name for name in modules if name != MAIN))

    def deserialize(self) -> UpdatePlan:
        """Return the plan with losses of this process.

        Raises:
            LossError: this process cannot find one of the losses.
        """
        try:
            for name in self.modules:
                import_module(name)
            return replace(self.plan, losses={role: named.resolve() for role, named in self.losses.items()})
        except (RllmError, ImportError) as error:
            names = " and ".join(sorted({named.qualified_name for named in self.losses.values()}))
            # The error's own hint is for processes on other machines, so it is not used.
            reason = error.message if isinstance(error, RllmError) else error
            raise LossError(
                "plugin-of-other-program",
                f"The training process does not find the loss {names}: {reason}",
                "Put the loss into a module and add that module to rllm.plugins.import_modules, or set "
                "local.training_process=false to train in the sampling process.",
            ) from error
