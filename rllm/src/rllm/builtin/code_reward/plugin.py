"""Plugin spec of the reward `code`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.reward import RewardPlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm.builtin.code_reward.reward import CodeParams

requires_api = 1
WAIT_FOR_A_PLACE = 3600.0
"""Seconds that a rollout may wait for a free sandbox. Its tests have their own time limit."""


def _check(params: CodeParams) -> None:
    from rllm.builtin.sandboxes.bwrap import BwrapParams, check_bwrap
    from rllm.builtin.sandboxes.container import ContainerParams, check_container

    if params.sandbox == "bwrap":
        check_bwrap(BwrapParams())
    elif params.sandbox != "local":
        check_container(params.sandbox, ContainerParams(image=params.image))


def _check_task(params: CodeParams, data: Mapping[str, Any]) -> None:
    call_lazily("rllm.builtin.code_reward.tests_of_tasks", "check_tests")(data, params.column)


@hookimpl
def rllm_rewards() -> Iterable[RewardPlugin[Any]]:
    yield RewardPlugin(
        name="code",
        summary="1 if the response's Python program passes the tests of its task, in a sandbox.",
        load_params=load_from("rllm.builtin.code_reward.reward", "CodeParams"),
        load=load_from("rllm.builtin.code_reward.reward", "Code"),
        blocking=False,
        timeout=WAIT_FOR_A_PLACE,
        check=_check,
        check_task=_check_task,
        family_option="column",
    )
