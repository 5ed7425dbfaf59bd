"""Where our own plugins live, so that "unknown name" can say what to install."""

from __future__ import annotations

from collections.abc import Mapping

COMMAND = "command"
"""Stands beside the kinds of plugins for commands of ``rllm``."""

_OFFERED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "rllm-verl": {"backend": ("verl",), "loss": ("vanilla", "gpg", "geo_mean")},
    "rllm-tinker": {"backend": ("tinker",), COMMAND: ("tinker",)},
    "rllm-local": {"backend": ("local",)},
    "rllm-vllm": {"engine": ("vllm",)},
    "rllm-envs": {"environment": ("guess", "sum")},
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


def home_of(kind: str, name: str) -> str | None:
    """The distribution of ours that offers `name`, whether or not it is installed."""
    return next((home for home, kinds in _OFFERED.items() if name in kinds.get(kind, ())), None)


def first_party_distributions() -> frozenset[str]:
    """Our distributions outside the core, whether or not they are installed."""
    return frozenset(_OFFERED)


def names_elsewhere(kind: str) -> list[str]:
    """All names of a kind that our distributions outside the core offer."""
    return [name for kinds in _OFFERED.values() for name in kinds.get(kind, ())]
