"""verl's and TRL's own functions, run from their source text without importing the libraries.

Importing them needs Ray, accelerate and many other packages. Their formulas do not. So the required definitions are
compiled from the installed source files, without decorators, and get the few names that they use. ``make install`` puts
both libraries, without their requirements, into the directory ``conformance`` of the virtual environment. There neither
can be imported by accident.
"""

from __future__ import annotations
import __future__

import ast
import json
import math
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

CONFORMANCE = Path(sys.prefix) / "conformance"


class PeerMissingError(Exception):
    """A library of the comparison is not installed."""


class ActorSettings(SimpleNamespace):
    """Replaces verl's ActorConfig: fields, and `get` with a default."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def directory_of(package: str) -> Path:
    """Return the directory of an installed package.

    Raises:
        PeerMissingError: it is not installed.
    """
    found = PathFinder.find_spec(package, [str(CONFORMANCE), *sys.path])
    if found is None or found.origin is None:
        raise PeerMissingError(f"{package} is not installed; `make install` puts it into {CONFORMANCE.name}/")
    return Path(found.origin).parent


def version_of(package: str) -> str:
    """Return the installed version, from the metadata next to the package."""
    (metadata,) = directory_of(package).parent.glob(f"{package}-*.dist-info")
    return metadata.name.removeprefix(f"{package}-").removesuffix(".dist-info")


def verl() -> SimpleNamespace:
    """The estimators, losses and helpers of verl's `trainer/ppo`, by their names there.

    Raises:
        PeerMissingError: verl is not installed.
    """
    directory = directory_of("verl")
    masked = _functions(directory / "utils/torch_functional.py", "(distributed_)?masked_.*|clip_by_value")
    no_environment = SimpleNamespace(environ={}, getenv=lambda name: None)
    groupwise = _functions(directory / "utils/groupwise.py", ".*", os=no_environment, get_device_name=lambda: "cpu")
    core = _functions(
        directory / "trainer/ppo/core_algos.py",
        "compute_.*|agg_loss|kl_penalty.*",
        verl_F=SimpleNamespace(**masked),
        as_torch_index=groupwise["as_torch_index"],
        group_mean_std=groupwise["group_mean_std"],
        ActorConfig=ActorSettings,
        AlgoConfig=type("AlgoConfig", (), {}),
    )
    correction = _functions(
        directory / "trainer/ppo/rollout_corr_helper.py",
        "compute_rollout_correction_weights|compute_rollout_rejection_mask|compute_offpolicy_metrics",
        verl_F=SimpleNamespace(**masked),
        # Its metrics divide by zero if everything is rejected.
        compute_is_metrics=lambda **columns: {},
        compute_rs_metrics=lambda **columns: {},
        **_constants(directory / "trainer/ppo/rollout_corr_helper.py", "SUPPORTED_ROLLOUT_RS_OPTIONS|TOKEN_LEVEL.*"),
    )
    return SimpleNamespace(**masked, **core, **correction, presets=_presets(directory / "trainer/config/algorithm.py"))


def trl() -> SimpleNamespace:
    """TRL's formulas: advantages, the two `_compute_loss` of its trainers, VESPO's weights, OPSM's mask, and `nanstd`.

    Raises:
        PeerMissingError: TRL is not installed.
    """
    directory = directory_of("trl")
    helpers = _functions(directory / "trainer/utils.py", "nanstd|nanmin|nanmax")
    grpo, rloo = directory / "trainer/grpo_trainer.py", directory / "trainer/rloo_trainer.py"
    gmpo = directory / "experimental/gmpo/gmpo_trainer.py"
    a2po = directory / "experimental/a2po/a2po_trainer.py"
    return SimpleNamespace(
        **helpers,
        grpo_advantages=_advantages(grpo, "GRPOTrainer", "unscorable_mask", helpers),
        rloo_advantages=_advantages(rloo, "RLOOTrainer", "unscorable_mask", helpers),
        grpo_loss=_method(grpo, "GRPOTrainer", "_compute_loss", **helpers),
        # Without its decorators, as all definitions here; this one has no gradient.
        gamma_weights=torch.no_grad()(_method(grpo, "GRPOTrainer", "get_gamma_weights")),
        off_policy_mask=_method(grpo, "GRPOTrainer", "get_off_policy_mask"),
        a2po_loss=_method(a2po, "A2POTrainer", "compute_loss"),
        gmpo_loss=_method(gmpo, "GMPOTrainer", "_compute_loss", **helpers),
    )


def trl_sft() -> SimpleNamespace:
    """TRL's preparation of a row for fine-tuning, its collator, and the loss of its trainer.

    Raises:
        PeerMissingError: TRL is not installed.
    """
    directory = directory_of("trl")
    trainer = directory / "trainer/sft_trainer.py"
    helpers = _functions(directory / "data_utils.py", "_tokenize|is_conversational|common_prefix_length")
    helpers["_tokenize"].__globals__["ProcessorMixin"] = type(None)
    quiet = SimpleNamespace(warning_once=lambda message: None)
    nested = {
        node.name: node
        for node in ast.walk(_parsed(trainer))
        if isinstance(node, ast.FunctionDef) and node.name in ("tokenize_fn", "build_labels")
    }
    prepare = _run(_compiled([*nested.values()], trainer), {**helpers, "logger": quiet, "json": json})
    pad = _functions(directory / "trainer/utils.py", "pad")
    # Only its test of the version of accelerate, for a kind of parallelism that is off.
    versions = {"Version": str, "accelerate": SimpleNamespace(__version__="1"), "warnings": warnings}
    return SimpleNamespace(
        tokenize=prepare["tokenize_fn"],
        build_labels=prepare["build_labels"],
        collate=_method(trainer, "DataCollatorForLanguageModeling", "torch_call", **pad),
        loss=_method(trainer, "SFTTrainer", "compute_loss", **versions),
    )


def trl_preferences() -> SimpleNamespace:
    """The losses of TRL's trainers for DPO (with IPO) and KTO, as functions of the trainer, the model and a batch.

    Raises:
        PeerMissingError: TRL is not installed.
    """
    directory = directory_of("trl")
    known = {
        "F": torch.nn.functional,
        "is_peft_model": lambda model: False,
        "disable_gradient_checkpointing": lambda model, settings: nullcontext(),
    }
    kto = directory / "trainer/kto_trainer.py"
    return SimpleNamespace(
        dpo_loss=_method(directory / "trainer/dpo_trainer.py", "DPOTrainer", "_compute_loss", **known),
        kto_loss=_method(kto, "KTOTrainer", "_compute_loss", **known),
        kto_logprobs=_method(kto, "KTOTrainer", "_compute_kl_logps", **known),
    )


def trl_reward_loss() -> Callable[..., Any]:
    """The loss of TRL's trainer for reward models, as a function of the trainer, the model and a batch.

    Raises:
        PeerMissingError: TRL is not installed.
    """
    file = directory_of("trl") / "trainer/reward_trainer.py"
    return _method(file, "RewardTrainer", "compute_loss", torch=torch, nn=torch.nn)


def trl_gkd() -> SimpleNamespace:
    """TRL's divergence of its trainer for GKD, and the divergence of a table of log-probs with a tail.

    Raises:
        PeerMissingError: TRL is not installed.
    """
    directory = directory_of("trl") / "experimental"
    known = {"torch": torch, "F": torch.nn.functional}
    return SimpleNamespace(
        generalized_jsd=_method(directory / "gkd/gkd_trainer.py", "GKDTrainer", "generalized_jsd_loss", **known),
        **_functions(directory / "sdpo/loss_utils.py", "compute_divergence|add_tail_bucket", **known),
    )


def _functions(file: Path, pattern: str, **known: Any) -> dict[str, Any]:
    """Return the functions of a file whose whole name matches. They can use its private functions and constants."""
    body = _parsed(file).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    wanted = [node for node in functions if re.fullmatch(pattern, node.name)]
    private = [node for node in functions if node.name.startswith("_")]
    constants = [node for node in body if isinstance(getattr(node, "value", None), ast.Constant) and _assigned(node)]
    namespace = _run(_compiled([*constants, *private, *wanted], file), known)
    return {node.name: namespace[node.name] for node in wanted}


def _presets(file: Path) -> SimpleNamespace:
    """verl's presets of rollout correction: functions that return the arguments of the configuration."""
    (body,) = (
        node.body
        for node in _parsed(file).body
        if isinstance(node, ast.ClassDef) and node.name == "RolloutCorrectionConfig"
    )
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    namespace = _run(_compiled(functions, file), {})
    presets = {node.name: partial(namespace[node.name], SimpleNamespace) for node in functions}
    return SimpleNamespace(**presets)


def _constants(file: Path, pattern: str) -> dict[str, Any]:
    """The module's values whose whole name matches."""
    wanted = [node for node in _parsed(file).body if re.fullmatch(pattern, _assigned(node) or "")]
    namespace = _run(_compiled(wanted, file), {})
    return {name: namespace[name] for node in wanted if (name := _assigned(node))}


def _method(file: Path, owner: str, name: str, **known: Any) -> Callable[..., Any]:
    """A method as a function of `self` and its arguments."""
    function: Callable[..., Any] = _run(_compiled([_method_node(file, owner, name)], file), known)[name]
    return function


def _advantages(file: Path, owner: str, first: str, helpers: dict[str, Any]) -> Callable[..., Tensor]:
    """The statements of a TRL trainer that turn rewards into advantages.

    They are in the middle of a method that also generates, from the assignment of `first` to the assignment of the
    advantages without NaN. The returned function takes rewards (n, n_reward_function), the group size and the trainer's
    settings.
    """
    statements = _method_node(file, owner, "_generate_and_score_completions").body
    start = next(index for index, node in enumerate(statements) if _assigned(node) == first)
    end = next(index for index, node in enumerate(statements) if "nan_to_num" in ast.unparse(node) and index > start)
    code = _compiled(statements[start : end + 1], file)

    def advantages(rewards: Tensor, num_generations: int, **settings: Any) -> Tensor:
        trainer = SimpleNamespace(reward_weights=torch.ones(rewards.shape[1], dtype=rewards.dtype), **settings)
        known = {"rewards_per_func": rewards, "num_generations": num_generations, "self": trainer}
        result: Tensor = _run(code, helpers | known | {"device": rewards.device})["advantages"]
        return result

    return advantages


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def _method_node(file: Path, owner: str, name: str) -> ast.FunctionDef:
    (methods,) = (node.body for node in _parsed(file).body if isinstance(node, ast.ClassDef) and node.name == owner)
    (method,) = (node for node in methods if isinstance(node, ast.FunctionDef) and node.name == name)
    return method


def _assigned(node: ast.stmt) -> str | None:
    """Return the single name to which a statement assigns."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def _compiled(statements: Sequence[ast.stmt], file: Path) -> CodeType:
    for statement in statements:
        if isinstance(statement, ast.FunctionDef):
            statement.decorator_list = []
    module = ast.Module(body=list(statements), type_ignores=[])
    # Annotations name classes that are not here, so they are not evaluated.
    return compile(module, str(file), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)


def _run(code: CodeType, known: dict[str, Any]) -> dict[str, Any]:
    """Return the names that `code` defines. It may use `known`."""
    namespace = {"torch": torch, "np": np, "math": math, "defaultdict": defaultdict} | known
    exec(code, namespace)
    return namespace
