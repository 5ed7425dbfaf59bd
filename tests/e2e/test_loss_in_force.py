"""A run reports if it trains on a loss that is not its estimator's default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

from rllm.planning.plan import RunPlan
from rllm.planning.plan_losses import FALLBACK_LOSS, losses_in_force
from rllm_core.plugins.registry import Registry

from .conftest import plan_of

ROOT = Path(__file__).parents[2]
VERL = {"rllm.backend": "verl", "rllm.profile": "cpu", "rllm.env.name": "guess"}
LOSS = "rllm.algorithm.loss_fn"
NATIVE = "actor_rollout_ref.actor.policy_loss.loss_mode"


def about_losses(plan: RunPlan) -> list[str]:
    return [line for line in plan.warnings if line.startswith("the loss")]


def test_verl_loss_is_kept_with_notice_of_override(worlds: Registry) -> None:
    made = plan_of({**VERL, "rllm.algorithm.adv_estimator": "rloo"}, worlds)
    assert made.losses.default.plugin.name == "ppo"
    (line,) = about_losses(made)
    check_values(line, f"loss is ppo ({LOSS} from backend verl, by {NATIVE})", "rloo", "`--loss importance_sampling`")

    followed = plan_of({**VERL, "rllm.algorithm.adv_estimator": "rloo", LOSS: "importance_sampling"}, worlds)
    assert followed.losses.default.plugin.name == "importance_sampling"
    assert about_losses(followed) == []


@pytest.mark.parametrize("settings", [{LOSS: {"name": "ppo", "clip_ratio_c": 3.0}}, {NATIVE: "vanilla"}])
def test_loss_chosen_by_user_gives_no_notice(settings: dict[str, Any], worlds: Registry) -> None:
    made = plan_of({**VERL, "rllm.algorithm.adv_estimator": "rloo", **settings}, worlds)
    assert made.losses.default.plugin.name == "ppo"
    assert about_losses(made) == []
    (entry,) = losses_in_force(made)
    assert (entry.default, entry.is_default, entry.by_user) == ("importance_sampling", False, True)


def test_other_backends_set_no_loss(worlds: Registry) -> None:
    made = plan_of({"rllm.env.name": "guess", "rllm.algorithm.adv_estimator": "rloo"}, worlds)
    assert about_losses(made) == []
    assert [entry.is_default for entry in losses_in_force(made)] == [True]


def test_a_role_is_named_with_its_own_word(worlds: Registry) -> None:
    roles = {"rllm.algorithm.estimator_map": {"judge": "reinforce", "solver": "grpo", "poet": "rloo"}}
    word = {"rllm.algorithm.loss_map": {"poet": "ppo"}}
    (line,) = about_losses(plan_of({**VERL, **roles, **word}, worlds))
    check_values(line, "role judge is ppo (")
    assert "`rllm.algorithm.loss_map.judge=importance_sampling`" in line
    word = {"rllm.algorithm.loss_map": {"poet": "ppo", "judge": "importance_sampling"}}
    assert about_losses(plan_of({**VERL, **roles, **word}, worlds)) == []


def test_loss_next_to_roles_estimator_applies_to_role(worlds: Registry) -> None:
    role = {"rllm.algorithm.estimator_map": {"poet": {"name": "rloo", "loss_fn": "reinforce"}}}
    made = plan_of({**VERL, **role}, worlds)
    assert about_losses(made) == []
    entry = next(entry for entry in losses_in_force(made) if entry.role == "poet")
    assert (entry.loss, entry.default, entry.by_user) == ("reinforce", "importance_sampling", True)
    assert entry.key == "rllm.algorithm.estimator_map.poet.loss_fn"


def test_dry_run_lists_loss_of_every_role(rllm_here: Any) -> None:
    words = ("rllm/backend=verl", "--profile", "cpu", "--estimator", "rloo", "--role-estimator", "judge=grpo")
    done = rllm_here("train", "guess", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    (table,) = re.findall(r"^Losses:\n((?:.+\n)+)", done.stdout, re.MULTILINE)
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    origin = f"backend verl, by {NATIVE}"
    assert rows == [
        rows[0],
        ["all", "rloo", "ppo", origin, "importance_sampling (--loss importance_sampling)"],
        ["judge", "grpo", "ppo", origin, "the same"],
    ]
    assert rows[0][:4] == ["role", "estimator", "loss", "from"]
    assert done.stderr.count(f"ppo ({LOSS} from") == 1


def test_the_documents_have_the_losses_of_the_records() -> None:
    defaults = {entry.name: entry.plugin.default_loss or FALLBACK_LOSS for entry in Registry.load().all("estimator")}
    rows = re.findall(r"^\| (.*) \| `(\w+)` \| `ppo` \| (.*)\|$", text_of("docs/backends/verl-keys.md"), re.MULTILINE)
    told = {name: loss for names, loss, _ in rows for name in re.findall(r"`(\w+)`", names)}
    assert told.pop("default_loss") == FALLBACK_LOSS
    assert told == defaults
    assert all(word.strip() == ("" if loss == "ppo" else f"`--loss {loss}`") for _, loss, word in rows)
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| `(\w+)` \| [^|]*(?:\\\|[^|]*)*\|$",
        text_of("plugins/rllm_estimators/README.md").partition("## Losses")[0],
        re.MULTILINE,
    )
    ours = {entry.name for entry in Registry.load().all("estimator") if entry.distribution == "rllm-estimators"}
    assert dict(rows) == {name: defaults[name] for name in ours}


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
