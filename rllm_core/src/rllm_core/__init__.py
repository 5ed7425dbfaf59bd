"""rllm-core: data, pipeline, extension points and command line of rllm."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_core.registration import get_rllm_adv_estimator as get_rllm_adv_estimator
    from rllm_core.registration import get_rllm_estimator as get_rllm_estimator
    from rllm_core.registration import get_rllm_grouping as get_rllm_grouping
    from rllm_core.registration import get_rllm_loss as get_rllm_loss
    from rllm_core.registration import get_rllm_rejection as get_rllm_rejection
    from rllm_core.registration import register_rllm_adv_estimator as register_rllm_adv_estimator
    from rllm_core.registration import register_rllm_estimator as register_rllm_estimator
    from rllm_core.registration import register_rllm_grouping as register_rllm_grouping
    from rllm_core.registration import register_rllm_loss as register_rllm_loss
    from rllm_core.registration import register_rllm_rejection as register_rllm_rejection
else:

    def __getattr__(name: str) -> Any:
        """The functions of `rllm_core.registration`, imported when one is first asked for: most commands need none."""
        if name in _FROM_REGISTRATION:
            return getattr(import_module("rllm_core.registration"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

_REGISTRABLE = ("adv_estimator", "estimator", "grouping", "loss", "rejection")
_FROM_REGISTRATION = frozenset(f"{verb}_rllm_{kind}" for verb in ("get", "register") for kind in _REGISTRABLE)
