"""Every example of the client's own documentation, taken from the installed package, against the server.

The examples ask for ``Qwen/Qwen3-8B``: the server's model is called so. What they take for granted, such as a run with
checkpoints, is there before. All of them are run; those that cannot succeed are listed with what they end with.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tinker import types
from tinker_in_process import tiny_server

from .conftest import DEADLINE, KEY

NAME = "Qwen/Qwen3-8B"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CHECKPOINTS = ("checkpoint-001", "step-400", "0001")
"""Names that examples load."""
ENDS_ITS_SESSION = "ServiceClient.close:1"

NO_ROUTE = r"This server does not do [A-Z]+ /api/v1/"
NOT_SERVED = {
    "AdminClient:1": NO_ROUTE + "billing",
    "AdminClient.get_billing_usage:1": NO_ROUTE + "billing",
    "AdminClient.get_audit_log:1": NO_ROUTE + "audit",
    "RestClient.assign_session_project:1": NO_ROUTE + "sessions/.*/project",
    "RestClient.copy_weights:1": NO_ROUTE + "copy_weights",
    "ServiceClient.copy_weights:1": NO_ROUTE + "copy_weights",
    "RestClient.export_session_trace:1": NO_ROUTE + "sessions/.*/trace_export",
    "RestClient.export_session_trace:2": NO_ROUTE + "sessions/.*/trace_export",
    "RestClient.publish_checkpoint_from_tinker_path:1": NO_ROUTE + "training_runs/.*/publish",
    "RestClient.unpublish_checkpoint_from_tinker_path:1": NO_ROUTE + "training_runs/.*/publish",
    "RestClient.search_sessions:1": NO_ROUTE + "sessions/search",
    "RestClient.whoami:1": "whoami requires JWT auth, but the server has it disabled",
}
"""Examples of what this server does not do, and how it (or for it the client) says so."""

WRONG_IN_THEMSELVES = {
    "RestClient.list_user_checkpoints:1": "'Checkpoint' object has no attribute 'training_run_id'",
    "TrainingClient.forward:1": "Unsupported loss_fn_inputs value for 'target_tokens': ModelInput",
    "TrainingClient.forward_backward:1": "Unsupported loss_fn_inputs value for 'target_tokens': ModelInput",
    "TrainingClient.forward_backward_custom:1": "'ForwardBackwardOutput' object has no attribute 'loss'",
}
"""Examples that use what the client does not have, and what it says; no server could make them run."""

FAILING = NOT_SERVED | WRONG_IN_THEMSELVES
PARTS = 6
"""Tests that share the examples, which are listed only when a test runs."""


def documented(owner: type) -> Iterator[tuple[str, str]]:
    """Name and documentation of a class and of its public methods."""
    yield owner.__name__, owner.__doc__ or ""
    for name, member in vars(owner).items():
        if not name.startswith("_"):
            yield f"{owner.__name__}.{name}", getattr(member, "__doc__", None) or ""


def documented_examples() -> dict[str, str]:
    """By where they stand: ``TrainingClient.forward:1`` is the first of that method."""
    owners = [member for member in tuple(vars(tinker).values()) if inspect.isclass(member)]
    texts = dict(entry for owner in owners for entry in documented(owner))
    return {
        f"{place}:{number}": source
        for place, text in texts.items()
        for number, source in enumerate(BLOCK.findall(inspect.cleandoc(text)), 1)
    }


@dataclass(frozen=True)
class Run:
    """Objects that an earlier program left open on the server."""

    model_id: str

    def named_in(self, source: str) -> str:
        """Return the example with the ids of this run instead of its own ids."""
        return source.replace("run-id", self.model_id).replace("session-id", self.model_id.partition(":")[0])


def datum() -> types.Datum:
    inputs: dict[str, Any] = {"target_tokens": [9, 14, 19], "weights": [1.0, 1.0, 1.0]}
    return types.Datum(model_input=types.ModelInput.from_ints([4, 9, 14]), loss_fn_inputs=inputs)


def mean_logprob(_: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    return torch.cat(logprobs).mean(), {}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tiny_server(tmp_path_factory.mktemp("checkpoints"), names=(NAME,)) as server:
        yield server.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[tinker.ServiceClient]:
    """Objects that examples share, except the example that closes them."""
    client = tinker.ServiceClient(base_url=url, api_key=KEY)
    yield client
    client.close("success").result(DEADLINE)


@pytest.fixture(scope="module")
def run(client: tinker.ServiceClient) -> Run:
    trainer = client.create_lora_training_client(base_model=NAME).result(DEADLINE)
    for name in CHECKPOINTS:
        trainer.save_state(name).result(DEADLINE)
    return Run(trainer.model_id)


@pytest.fixture(scope="module")
def names(client: tinker.ServiceClient) -> dict[str, Any]:
    """Objects that examples use but do not create."""
    trainer = client.create_lora_training_client(base_model=NAME).result(DEADLINE)
    return {
        "tinker": tinker,
        "types": types,
        "torch": torch,
        "asyncio": asyncio,
        "ServiceClient": tinker.ServiceClient,
        "service_client": client,
        "training_client": trainer,
        "sampling_client": client.create_sampling_client(base_model=NAME).result(DEADLINE),
        "tokenizer": trainer.get_tokenizer(),
        "training_data": [datum()],
        "data": [datum()],
        "custom_loss": mean_logprob,
        "prompt": types.ModelInput.from_ints([4, 9]),
        "params": types.SamplingParams(max_tokens=2),
        "candidate_token_id": 7,
        "long_context": "a long text",
        "completions": ["one", "two"],
        "api_future": trainer.forward_backward([datum()], "cross_entropy"),
    }


@pytest.fixture
def execute(
    url: str, run: Run, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[str, str], None]]:
    """Run an example to its end, and wait for whatever it submitted without waiting. Close its clients."""
    monkeypatch.setenv("TINKER_BASE_URL", url)
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    clients: list[Any] = []
    make = tinker.ServiceClient.__init__

    def make_and_remember(self: Any, *given: Any, **options: Any) -> None:
        make(self, *given, **options)
        clients.append(self)

    monkeypatch.setattr(tinker.ServiceClient, "__init__", make_and_remember)

    async def executed(place: str, source: str) -> None:
        used = {**names, "rest_client": tinker.RestClient(), "admin_client": tinker.AdminClient()}
        if place == ENDS_ITS_SESSION:
            used["service_client"] = tinker.ServiceClient()
        code = compile(run.named_in(source), place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        submitted = eval(code, used)
        if submitted is not None:
            await submitted
        for value in tuple(used.values()):
            if inspect.isawaitable(value):
                await value

    yield lambda place, source: asyncio.run(asyncio.wait_for(executed(place, source), DEADLINE))
    for client in clients:
        client.close("success").result(DEADLINE)


# Examples show deprecated and experimental methods too.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("part", range(PARTS))
def test_documented_examples_run_or_end_as_listed(execute: Callable[[str, str], None], part: int) -> None:
    for place, source in [*documented_examples().items()][part::PARTS]:
        if place in FAILING:
            with pytest.raises(Exception, match=FAILING[place]):
                execute(place, source)
            continue
        try:
            execute(place, source)
        except Exception as error:
            error.add_note(f"in the example {place}")
            raise


def test_what_is_listed_is_documented() -> None:
    examples = documented_examples()
    assert len(examples) > 50
    assert FAILING.keys() <= examples.keys()
