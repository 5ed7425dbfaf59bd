"""The records of the losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_estimators.loss_options import (
    CispoParams,
    ClipCovParams,
    DppoParams,
    DroParams,
    GmpoParams,
    GspoParams,
    KlCovParams,
    SapoParams,
)

OF_SEQUENCES = "loss_agg_mode=seq-mean-token-mean is the paper's"


def _from(module: str, name: str) -> Callable[[], Any]:
    """A `load` that imports ``rllm_estimators.<module>`` when it is called."""
    return lambda: getattr(import_module(f"rllm_estimators.{module}"), name)


def loss_records() -> Iterator[LossPlugin[Any]]:
    yield LossPlugin(
        name="cispo",
        summary="Log-prob times advantage, weighted by the clipped importance ratio, which has no gradient.",
        params=CispoParams,
        load=_from("losses_weighted", "cispo"),
        load_clipped=_from("losses_weighted", "cispo_clipped"),
    )
    yield LossPlugin(
        name="dppo_tv",
        summary="Trains on a token while its probability is within max_divergence of the old one.",
        params=DppoParams,
        load=_from("losses_weighted", "dppo_tv"),
        load_clipped=_from("losses_weighted", "dppo_tv_clipped"),
        corrects_rollouts=True,
    )
    yield LossPlugin(
        name="dppo_kl",
        summary="Trains on a token while the divergence of its probability from the old one is within max_divergence.",
        params=DppoParams,
        load=_from("losses_weighted", "dppo_kl"),
        load_clipped=_from("losses_weighted", "dppo_kl_clipped"),
        corrects_rollouts=True,
    )
    yield LossPlugin(
        name="cross_entropy",
        summary="Imitates the sampled tokens; advantages are ignored.",
        params=NoParams,
        load=_from("losses_weighted", "cross_entropy"),
        has_ratio=False,
    )
    yield LossPlugin(
        name="dro",
        summary="Log-prob times advantage, with a quadratic penalty on the log-ratio.",
        params=DroParams,
        load=_from("losses_smooth", "dro"),
    )
    yield LossPlugin(
        name="sapo",
        summary=f"A smooth gate in place of PPO's clip; {OF_SEQUENCES}.",
        params=SapoParams,
        load=_from("losses_smooth", "sapo"),
    )
    yield LossPlugin(
        name="gspo",
        summary=f"PPO's clip on one ratio per sequence; {OF_SEQUENCES}.",
        params=GspoParams,
        load=_from("losses_sequence", "gspo"),
        load_clipped=_from("losses_sequence", "gspo_clipped"),
    )
    yield LossPlugin(
        name="gmpo",
        summary=f"Geometric mean of a sequence's clipped ratios; {OF_SEQUENCES}.",
        params=GmpoParams,
        load=_from("losses_sequence", "gmpo"),
        load_clipped=_from("losses_sequence", "gmpo_clipped"),
    )
    yield LossPlugin(
        name="kl_cov",
        summary="No clip; a penalty on the few tokens of each row that cost the most entropy.",
        params=KlCovParams,
        load=_from("losses_covariance", "kl_cov"),
    )
    yield LossPlugin(
        name="clip_cov",
        summary="PPO, without a random few of each row's tokens that cost the most entropy.",
        params=ClipCovParams,
        load=_from("losses_covariance", "clip_cov"),
        load_clipped=_from("losses_covariance", "clip_cov_clipped"),
    )
