"""The reward `code`, and its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

requires_api = 1
WAIT_FOR_A_PLACE = 3600.0
"""Seconds that a rollout may wait for a free sandbox. Its tests have their own time limit."""


class CodeParams(Params):
    """Options of the reward ``code``."""

    column: str | None = Field(
        None,
        description="Column with the tests. Without it: the first of tests, test_list, test_cases, input_output, test, "
        "verification_info, reward_model.ground_truth, public_test_cases with private_test_cases.",
    )
    sandbox: Literal["bwrap", "local", "docker", "podman"] = Field(
        "bwrap", description="Sandbox of the program. `local` isolates nothing: the program may do all that you may do."
    )
    image: str = Field("python:3.12", description="Image of the sandboxes `docker` and `podman`.")
    seconds: float = Field(10.0, gt=0, le=600, description="Time limit of a test.")
    memory_mb: int = Field(1024, ge=64, description="Memory limit of a program.")
    partial: bool = Field(False, description="Reward the share of passed tests. Otherwise only all tests give 1.")
    processes: int = Field(4, ge=1, le=256, description="Maximum number of concurrent sandboxes.")


def _check(params: CodeParams) -> None:
    from rllm.builtin.sandboxes.plugin import BwrapParams, ContainerParams, check_bwrap, check_container

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
        params=CodeParams,
        load=load_from("rllm.builtin.code_reward.reward", "Code"),
        blocking=False,
        timeout=WAIT_FOR_A_PLACE,
        check=_check,
        check_task=_check_task,
        family_option="column",
    )
