"""Losses of the Tinker API, with their inputs and settings. A loss is a sum over all positions of a datum.

The formulas come from https://tinker-docs.thinkingmachines.ai/tinker/losses. The formula of `stable_reinforce` is not
public, so the server computes another one. Log-ratios are bounded before they are exponentiated, as in all losses of
rllm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rllm_core.contracts.loss import LossInput
from rllm_core.contracts.params import NoParams
from rllm_core.updates import losses as core_losses
from rllm_core.updates.losses import MAX_LOG_RATIO, clipped_surrogate, importance_ratio
from rllm_tinker_server.messages import SAMPLED, STAND_IN, RequestError

Config = Mapping[str, float]
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Bounds of the importance ratio itself, not of its distance from 1."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Input of a loss: the concatenated targets of some whole examples. Every tensor is (n_target,)."""

    logprobs: Tensor
    """float32, with a gradient."""
    examples: Tensor
    """int64, index of each target's example, from 0."""
    inputs: Mapping[str, Tensor]
    """float32, what the client sent."""

    @property
    def policy(self) -> LossInput:
        """The same as the losses of rllm read it."""
        columns = {"old_logprobs": self.inputs["logprobs"], "advantages": self.inputs["advantages"]}
        return LossInput.from_columns(self.logprobs, self.examples, columns.get)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One of the API's losses."""

    function: Callable[[Targets, Config], Tensor]
    """(n_target,) the loss of each target, to be minimized."""
    inputs: frozenset[str]
    """Inputs that every datum must have in addition to its targets."""
    config: Config = field(default_factory=dict)
    """Settings with their defaults."""
    many_targets: bool = False
    """True if a position may have several targets, (n, k)."""


def cross_entropy(targets: Targets, config: Config) -> Tensor:
    """-weight · logprob. Weights may be negative: `forward_backward_custom` sends the gradient of its loss as such."""
    return -targets.inputs["weights"] * targets.logprobs


def importance_sampling(targets: Targets, config: Config) -> Tensor:
    """-A rho, rho = exp(logprob - old logprob)."""
    return core_losses.importance_sampling(targets.policy, NoParams())


def ppo(targets: Targets, config: Config) -> Tensor:
    """-min(A rho, A clip(rho)). Schulman et al. 2017, arXiv:1707.06347."""
    return _clip_surrogate(importance_ratio(targets.policy), targets, config)


def cispo(targets: Targets, config: Config) -> Tensor:
    """-sg(clip(rho)) A logprob. MiniMax 2025, arXiv:2506.13585."""
    weight = importance_ratio(targets.policy).clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -weight.detach() * targets.inputs["advantages"] * targets.logprobs


def dro(targets: Targets, config: Config) -> Tensor:
    """-(A logprob - beta / 2 (logprob - old logprob)^2). Richemond et al. 2024, arXiv:2405.19107.

    Of every position: a prompt's, with an advantage of 0 and an old log-prob of 0, is pulled towards that all the same.
    """
    log_ratio = targets.logprobs - targets.inputs["logprobs"]
    return -targets.inputs["advantages"] * targets.logprobs + 0.5 * config["beta"] * log_ratio.square()


def gspo(targets: Targets, config: Config) -> Tensor:
    """-min(A s, A clip(s)), s = exp(mean of log rho over the example's marked targets).

    Every target has the value of its example, but its gradient flows only through the target's log-prob (GSPO-token).
    Zheng et al. 2025, arXiv:2507.18071.
    """
    marked = (targets.inputs["sequence_ratio_mask"] != 0).float()
    log_ratio = targets.logprobs.detach() - targets.inputs["logprobs"]
    size = int(targets.examples[-1]) + 1
    total = log_ratio.new_zeros(size).index_add_(0, targets.examples, marked * log_ratio)
    count = log_ratio.new_zeros(size).index_add_(0, targets.examples, marked)
    own_gradient = targets.logprobs - targets.logprobs.detach()
    ratio = ((total / count)[targets.examples] + own_gradient).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _clip_surrogate(ratio, targets, config)


def stable_reinforce(targets: Targets, config: Config) -> Tensor:
    """m (-sg(min(rho, 2)) A logprob + kl_coeff / 2 (logprob - old logprob)^2), m = 1 for sampled tokens, else 0.

    The policy gradient with truncated importance weights (Ionides 2008), and the k2 estimate of the KL divergence from
    the sampling policy (http://joschu.net/blog/kl-approx.html).
    """
    log_ratio = targets.logprobs - targets.inputs["logprobs"]
    weight = importance_ratio(targets.policy).clamp(max=MAX_WEIGHT).detach()
    policy = -weight * targets.inputs["advantages"] * targets.logprobs
    return targets.inputs[SAMPLED] * (policy + 0.5 * config["kl_coeff"] * log_ratio.square())


def _clip_surrogate(ratio: Tensor, targets: Targets, config: Config) -> Tensor:
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    return clipped_surrogate(ratio, targets.inputs["advantages"], 1 - low, high - 1)


POLICY = frozenset({"logprobs", "advantages"})
MAX_WEIGHT = 2.0
"""Maximum importance weight of `stable_reinforce`."""
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(function=cross_entropy, inputs=frozenset({"weights"}), many_targets=True),
    "importance_sampling": Loss(function=importance_sampling, inputs=POLICY),
    "ppo": Loss(function=ppo, inputs=POLICY, config=CLIP),
    "cispo": Loss(function=cispo, inputs=POLICY, config=CLIP),
    "dro": Loss(function=dro, inputs=POLICY, config={"beta": 0.05}),
    "gspo": Loss(function=gspo, inputs=POLICY | {"sequence_ratio_mask"}, config=CLIP),
    STAND_IN: Loss(function=stable_reinforce, inputs=POLICY | {SAMPLED}, config={"kl_coeff": 0.0}),
}
CLIENT_LOSSES = {
    "custom": "The loss custom is no loss of a server: forward_backward_custom computes it on the client",
}


def find_loss(name: str) -> Loss:
    """The loss of that name.

    Raises:
        RequestError: there is none.
    """
    loss = LOSSES.get(name)
    if loss is None:
        why = CLIENT_LOSSES.get(name, f"There is no loss {name!r}")
        raise RequestError(f"{why}. This server has {', '.join(LOSSES)}.")
    return loss


def complete_config(name: str, given: Config) -> Config:
    """The settings of the loss `name`: those given, and the defaults of the others.

    Raises:
        RequestError: a setting that the loss does not have, or a value that makes no sense.
    """
    known = find_loss(name).config
    for key, value in given.items():
        if key not in known:
            has = f"It has {', '.join(known)}" if known else "It has none"
            raise RequestError(f"The loss {name} has no setting {key!r} in loss_fn_config. {has}.")
        if not (math.isfinite(value) and value >= 0):
            raise RequestError(f"{key} in loss_fn_config of {name} is {value}. It must be a number of 0 or more.")
    config = {**known, **given}
    if "clip_low_threshold" in config and config["clip_low_threshold"] > config["clip_high_threshold"]:
        raise RequestError(
            f"clip_low_threshold={config['clip_low_threshold']} of {name} is above "
            f"clip_high_threshold={config['clip_high_threshold']}. Both bound the ratio itself, such as 0.8 and 1.2."
        )
    return config
