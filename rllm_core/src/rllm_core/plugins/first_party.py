"""Where our own plugins live, so that "unknown name" can say what to install."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

COMMAND = "command"
"""Stands beside the kinds of plugins for commands of ``rllm``."""

_OFFERED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "rllm-verl": {"backend": ("verl",), "loss": ("vanilla", "gpg", "geo_mean")},
    "rllm-tinker": {"backend": ("tinker",), COMMAND: ("tinker",)},
    "rllm-local": {"backend": ("local",)},
    "rllm-vllm": {"engine": ("vllm",)},
    "rllm-envs": {"environment": ("guess", "sum"), "workflow": ("solver_judge",)},
    "rllm-estimators": {
        "estimator": (
            "opo",
            "gpg",
            "grpo_passk",
            "gdpo",
            "maxrl",
            "prpo",
            "dr_grpo",
            "gae",
            "reinforce_plus_plus",
            "remax",
            "otb",
            "tir_otb",
            "step_reinforce",
        ),
        "loss": (
            "cispo",
            "dppo_tv",
            "dppo_kl",
            "cross_entropy",
            "dro",
            "sapo",
            "gspo",
            "gmpo",
            "kl_cov",
            "clip_cov",
        ),
    },
}


_EXTRAS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {"rllm-tinker": ("tinker_base_url", "local", "local"), "rllm-verl": ("rllm.profile", "cpu", "cpu")}
)
"""Distribution -> a key, its value, and the extra that a run with this value needs."""
_ON_GPUS: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        "rllm-verl": (("vllm",), "'rllm-verl[cpu]', and --profile cpu"),
        "rllm-vllm": (("gpu",), "'rllm-vllm[cpu]'"),
    }
)
"""Distribution -> the extras of its other runs, and what stands for them without a GPU. A dry run does without."""


def extras_of(distribution: str, value: Callable[[str], Any]) -> tuple[str, ...]:
    """The extras of a distribution that a run needs; `value` gives that of a dotted key."""
    key, wanted, extra = _EXTRAS.get(distribution, ("", "", ""))
    return (extra,) if key and value(key) == wanted else ()


def to_install(distribution: str, value: Callable[[str], Any]) -> tuple[tuple[str, ...], str]:
    """The extras to install a distribution with, and what to write instead on a machine without a GPU."""
    extras = extras_of(distribution, value)
    if extras or distribution not in _ON_GPUS:
        return extras, ""
    return _ON_GPUS[distribution]


def home_of(kind: str, name: str) -> str | None:
    """The distribution of ours that offers `name`, whether or not it is installed."""
    return next((home for home, kinds in _OFFERED.items() if name in kinds.get(kind, ())), None)


def first_party_distributions() -> frozenset[str]:
    """Our distributions outside the core, whether or not they are installed."""
    return frozenset(_OFFERED)


def names_elsewhere(kind: str) -> list[str]:
    """All names of a kind that our distributions outside the core offer."""
    return [name for kinds in _OFFERED.values() for name in kinds.get(kind, ())]
