"""An update plan on its way to the process that trains: its losses by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module

from rllm_backend_kit.named_loss import NamedLoss
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.errors import LossError, RllmError

MAIN = "__main__"


@dataclass(frozen=True)
class SentPlan:
    """Plain data."""

    plan: UpdatePlan
    """Without its losses."""
    losses: Mapping[str, NamedLoss]
    """By role."""
    modules: tuple[str, ...]
    """Where they are written: losses that the program registers are known once these are imported."""

    @classmethod
    def of(cls, plan: UpdatePlan) -> SentPlan:
        """What to send."""
        losses = {role: NamedLoss.of(choice) for role, choice in plan.losses.items()}
        functions = [choice.registered.load() for choice in plan.losses.values()]
        modules = dict.fromkeys(str(getattr(function, "__module__", None) or MAIN) for function in functions)
        return cls(replace(plan, losses={}), losses, tuple(name for name in modules if name != MAIN))

    def plan_here(self) -> UpdatePlan:
        """The plan, with losses of this process.

        Raises:
            LossError: this process does not find one of them.
        """
        try:
            for name in self.modules:
                import_module(name)
            return replace(self.plan, losses={role: named.resolve() for role, named in self.losses.items()})
        except (RllmError, ImportError) as error:
            names = " and ".join(sorted({named.qualified_name for named in self.losses.values()}))
            # Its hint is for processes of other machines.
            reason = error.message if isinstance(error, RllmError) else error
            raise LossError(
                "plugin-of-other-program",
                f"The process that trains does not find the loss {names}: {reason}",
                "Put the loss into a module that rllm.plugins.import_modules names, or train in the process that "
                "samples: local.training_process=false.",
            ) from error
