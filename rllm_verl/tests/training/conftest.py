"""Groups of one and two real training workers of verl, and the local backend next to them."""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import secrets
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from rllm_core.contracts.chosen import PluginChoice

os.environ["VERL_PLATFORM"] = "cpu"

import numpy as np
import pytest
import torch
from local_models import build_tiny
from numpy.typing import NDArray

from rllm_core.contracts.backend import KlTerm, RolloutCorrection, UpdatePlan, UpdateResult
from rllm_core.contracts.loss import LossPlugin
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.plugins.registry import Registry, forget_in_process, register_in_process
from rllm_local import tiny
from rllm_local.settings import TrainingSection
from rllm_local.update import Updater as LocalUpdater
from rllm_verl.rows import MicroBatching
from rllm_verl.update import Updater, UpdateSettings

torch.set_num_threads(1)
START_SECONDS = 90.0
CALL_SECONDS = 60.0
LEARNING_RATE = 1e-3
MAX_RESPONSE_LENGTH = 50


def _load(name: str) -> ModuleType:
    """Load a file next to this one, because test modules are not packages."""
    spec = importlib.util.spec_from_file_location(f"training_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


rank = _load("rank")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Group:
    """`rllm_verl.rows.Workers` over the ranks of a group, whose parts are cut and put together as by verl."""

    data_parallel_size: int

    def call(self, method: str, *by_rank: tuple[Any, ...]) -> list[Any]:
        """The answers of all ranks; `by_rank` are the arguments of each, or of all."""
        raise NotImplementedError

    def restart(self, *, rows: int | None = None, tokens: int | None = None) -> Self:
        """Fresh weights and optimizer, and micro-batches of so many rows, or of up to so many tokens."""
        settings = {
            "use_dynamic_bsz": tokens is not None,
            "max_token_len_per_gpu": tokens,
            "infer_max_token_len_per_gpu": tokens,
            "micro_batch_size_per_gpu": rows,
            "infer_micro_batch_size_per_gpu": rows,
        }
        self.call("restart", (settings,))
        return self

    def weights(self) -> torch.Tensor:
        return self.call("weights")[0]

    def set_loss_fn(self, loss: Any) -> None:
        self.call("set_loss_fn", (loss,))

    def compute_log_prob(self, data: Any) -> Any:
        return self._over_ranks("compute_log_prob", data)

    def compute_ref_log_prob(self, data: Any) -> Any:
        raise NotImplementedError

    def optimizer_zero_grad(self) -> None:
        self.call("optimizer_zero_grad")

    def forward_backward(self, data: Any) -> Any:
        return self._over_ranks("forward_backward", data)

    def optimizer_step(self, parameters: dict[str, float]) -> dict[str, float]:
        return self.call("optimizer_step", (parameters,))[0]

    def _over_ranks(self, method: str, data: Any) -> Any:
        from verl.protocol import BatchData

        parts = BatchData(data).chunk(self.data_parallel_size)
        return BatchData(self.call(method, *((part,) for part in parts))).concat()


class OneRank(Group):
    """One rank, in this process."""

    data_parallel_size = 1

    def __init__(self, directory: Path, **options: Any) -> None:
        self.rank = rank.Rank(str(directory), rank.Place(0, 1, _free_port()), **options)

    def call(self, method: str, *by_rank: tuple[Any, ...]) -> list[Any]:
        # Through pickle, as Ray and the ranks of `Together` have it.
        arguments = pickle.loads(pickle.dumps(by_rank[0] if by_rank else ()))
        return [self.rank.call(method, *arguments)]


class Together(Group):
    """Several ranks, each a process; `close` ends them."""

    def __init__(self, directory: Path, world: int, *, lora_rank: int = 0, fused: bool = False) -> None:
        self.data_parallel_size = world
        key, port = secrets.token_bytes(16), _free_port()
        connected: dict[int, Connection] = {}
        with Listener(None, authkey=key) as listener:
            options = [lora_rank, int(fused)]
            command = [sys.executable, rank.__file__, listener.address, directory, world, port, *options]
            environment = os.environ | {"RANK_KEY": key.hex(), "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(list(map(str, command)), env=environment)
            for connection in [listener.accept() for _ in range(world)]:
                assert connection.poll(START_SECONDS), "a rank does not start"
                connected[pickle.loads(connection.recv_bytes())] = connection
        self._ranks = [connected[number] for number in range(world)]

    def call(self, method: str, *by_rank: tuple[Any, ...]) -> list[Any]:
        arguments = by_rank or ((),)
        for number, connection in enumerate(self._ranks):
            connection.send_bytes(pickle.dumps((method, arguments[number % len(arguments)])))
        return self._answers(CALL_SECONDS)

    def close(self) -> None:
        for connection in self._ranks:
            connection.close()
        try:
            self._process.wait(CALL_SECONDS)
        finally:
            self._process.kill()

    def _answers(self, seconds: float) -> list[Any]:
        answers = []
        for connection in self._ranks:
            assert connection.poll(seconds), "a rank does not answer"
            well, answer = pickle.loads(connection.recv_bytes())
            assert well, answer
            answers.append(answer)
        return answers


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build_tiny(0).save_pretrained(directory)
        tiny.build_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(autouse=True)
def _warnings_are_logged_elsewhere() -> Iterator[None]:
    """A rank in this process switches them off, and later tests of others read what is logged."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def one_rank(model_directory: Path) -> Iterator[OneRank]:
    """One rank. Call `restart` before use."""
    environment = dict(os.environ)
    group = OneRank(model_directory)
    yield group
    group.rank.close()
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def with_adapter(one_rank: OneRank, model_directory: Path) -> OneRank:
    """One rank that trains a LoRA adapter; in the process group of `one_rank`, which outlives it."""
    return OneRank(model_directory, lora_rank=4).restart(rows=1)


@pytest.fixture(scope="session")
def two_ranks(model_directory: Path) -> Iterator[Together]:
    """Two ranks. Call `restart` before use."""
    group = Together(model_directory, 2)
    yield group
    group.close()


@pytest.fixture(scope="session")
def fused_group(model_directory: Path) -> Iterator[Together]:
    """Two ranks with verl's fused kernels, which change the model's class in their processes. Call `restart`."""
    group = Together(model_directory, 2, fused=True)
    yield group
    group.close()


Turns = Sequence[Sequence[tuple[int, int]]]
RAGGED: Turns = [
    *([(5, 3), (2, 4)], [(1, 1)], [(30, 12), (1, 1), (4, 6)], [(3, 0), (2, 5)]),
    *([(8, 25)], [(2, 2)], [(7, 9)]),
]
"""Seven rows of 2 to 54 tokens."""
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Settings of a small model of any type."""


def random_batch(
    turns: Turns, *, roles: Sequence[str] = ("agent",), temperature: float = 1.0, seed: int = 0
) -> TokenBatch:
    """A batch of random tokens, given the (prompt, response) lengths of the turns of each trajectory.

    Old log-probs are those of the tiny model and noise, so that some ratios are clipped and some are not; sampling and
    reference log-probs are near them. Trajectories have `roles` in turn.
    """
    generator = np.random.default_rng(seed)
    groups: dict[str, TrajectoryGroup] = {}
    for index, lengths in enumerate(turns):
        role = roles[index % len(roles)]
        trajectory = Trajectory(role, reward=0.0)
        history: list[int] = []
        for prompt, response in lengths:
            history += generator.integers(0, 70, prompt).tolist()
            sampled = generator.integers(0, 70, response)
            trajectory.add_step(history, sampled, np.zeros(response, np.float32))
            history += sampled.tolist()
        group = groups.setdefault(role, TrajectoryGroup(group_id=f"task:{role}", trajectories=[]))
        group.trajectories.append(trajectory)
    batch = build_batch(list(groups.values()))
    near = _logprobs(build_tiny(0), batch, temperature)

    def noisy(spread: float) -> NDArray[np.float32]:
        return (near + generator.normal(0, spread, near.shape)).astype(np.float32) * batch.loss_mask

    return batch.with_columns(
        advantages=generator.normal(0, 1, near.shape).astype(np.float32) * batch.loss_mask,
        old_logprobs=noisy(0.3),
        sampling_logprobs=noisy(0.3),
        ref_logprobs=noisy(0.5),
    )


@torch.no_grad()
def _logprobs(model: Any, batch: TokenBatch, temperature: float) -> NDArray[np.float32]:
    """(n_token,) of every token but the first of its row, one row after the other."""
    logprobs = np.zeros(len(batch.tokens), np.float32)
    for start, end in pairwise(batch.row_offsets):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        distribution = torch.log_softmax(model(input_ids=ids[None]).logits[0] / temperature, dim=-1)
        logprobs[start + 1 : end] = distribution[:-1].gather(1, ids[1:, None])[:, 0].numpy()
    return logprobs


def make_plan(losses: str | Mapping[str, str] = "ppo", roles: Sequence[str] = ("agent",), **changes: Any) -> UpdatePlan:
    """An update plan; `losses` are names by role, or of one loss for every role."""
    by_role = dict.fromkeys(roles, losses) if isinstance(losses, str) else losses
    values = {"global_step": 0, "aggregation": "token-mean", "entropy_coeff": 0.0, "seed": 3} | changes
    return UpdatePlan(losses={role: _choice(name) for role, name in by_role.items()}, **values)


def _choice(name: str) -> PluginChoice[LossPlugin[Any]]:
    is_installed = any(name in (each.plugin.name, each.qualified_name) for each in _installed_plugins().all("loss"))
    found = _installed_plugins() if is_installed else Registry.load(allow=())
    chosen = found.get("loss", name)
    return PluginChoice(registered=chosen, params=chosen.plugin.params())


@cache
def _installed_plugins() -> Registry:
    """Without losses that a test registers in this process."""
    return Registry.load(allow={"rllm-core", "rllm-estimators", "rllm-verl"})


def plan_of_everything(judge: str, **changes: Any) -> UpdatePlan:
    """Two roles with losses, of which one looks at whole rows, and all terms."""
    correction = RolloutCorrection(mode="sequence", cap=2.0, floor=0.1, beyond_cap="truncate")
    terms = {"entropy_coeff": 0.1, "kl": KlTerm(beta=0.1, estimator="k3"), "rollout_correction": correction}
    return make_plan({"solver": "gspo", "judge": judge}, aggregation="seq-mean-token-mean", **terms, **changes)


def update_locally(
    batch: TokenBatch, plan: UpdatePlan, *, temperature: float = 1.0, **settings: Any
) -> tuple[UpdateResult, torch.Tensor]:
    """Result and weights of an update on the local backend."""
    model = build_tiny(0)
    optimizer = {"learning_rate": LEARNING_RATE, "beta1": 0.9, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.0}
    section = TrainingSection(**optimizer, max_grad_norm=1.0, **settings)
    updater = LocalUpdater(
        model, section, total_steps=10, temperature=temperature, max_response_length=MAX_RESPONSE_LENGTH
    )
    result = updater.update(batch, plan)
    return result, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def make_updater(*, rows: int | None = None, tokens: int | None = None, **changes: Any) -> Updater:
    values: dict[str, Any] = {
        "learning_rate": LEARNING_RATE,
        "lr_schedule": "constant",
        "warmup_steps_ratio": 0.0,
        "num_epochs": 1,
        "num_minibatches": 1,
        "temperature": 1.0,
        "calculate_entropy": True,
        "micro_batching": MicroBatching(rows=rows or 1, max_tokens=tokens),
    }
    return Updater(UpdateSettings(**values | changes), total_steps=10, max_response_length=MAX_RESPONSE_LENGTH)


@pytest.fixture
def register_loss() -> Iterator[Callable[[str, Any], None]]:
    """Registers a loss in this process, which is where the rank of `one_rank` also runs."""
    names = []

    def register(name: str, function: Any) -> None:
        register_in_process(LossPlugin(name=name, summary="For a test.", load=lambda: function), name)
        names.append(name)

    yield register
    for name in names:
        forget_in_process("loss", name)
