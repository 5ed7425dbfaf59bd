"""Every teacher of this repository keeps the contract, and returns the log-probs of Hugging Face's forward pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_server import serving
from numpy.typing import NDArray
from prompt_logprobs_server import hugging_face_distributions, hugging_face_logprobs, prompt_logprobs_app

from rllm.builtin.distillation.by_source import BySource, BySourceParams
from rllm.builtin.distillation.policy import PolicyParams, PolicyTeacher
from rllm.builtin.distillation.server import ServerParams, ServerTeacher
from rllm_core.contracts.teacher import TeacherSetup
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.messages import Message
from rllm_core.data.types import Step, Trajectory, TrajectoryGroup
from rllm_core.errors import BackendError, ConfigError, RolloutError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.seeding import derive_seed
from rllm_local import tiny
from rllm_local.columns import ColumnFiller
from rllm_local.scoring_models import TeacherModelParams
from rllm_local.teacher import ModelTeacher
from rllm_plugin_kit import TeacherContract
from rllm_plugin_kit.fakes import FakeBackend

HINT = "guess lower"


@cache
def renderer() -> TemplateRenderer:
    tokenizer = tiny.build_tokenizer()
    return TemplateRenderer(tokenizer, [tokenizer.eos_token_id])


@cache
def model() -> Any:
    """The model that `tiny` is in a run with seed 0."""
    return tiny.build_model(len(renderer().tokenizer), derive_seed(0, "model")).eval()


class Computing(FakeBackend):
    """A backend that computes log-probs with `tiny`."""

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        filler = ColumnFiller(model(), temperature=1, max_tokens_per_microbatch=256, recompute_old_logprobs=False)
        return batch.with_columns(**filler.columns(batch, needs))


def setup(temperature: float = 1.0) -> TeacherSetup:
    return TeacherSetup(backend=Computing(), renderer=renderer(), temperature=temperature, seed=0)


def conversations() -> list[TrajectoryGroup]:
    """Two rollouts with two turns each, and one with a system message. Their data sources are 0, 1 and 0."""
    groups = []
    for number in range(3):
        messages: list[Message] = [{"role": "user", "content": f"{number} plus 1 is"}]
        if number == 2:
            messages.insert(0, {"role": "system", "content": "number"})
        first = renderer().prompt(messages)
        response = renderer().response_ids(str(number + 1))
        later = np.concatenate((first, response, renderer().prompt([{"role": "user", "content": "higher"}])))
        turns = [
            Step(first, response, np.full(len(response), -1.0), messages=messages),
            Step(later, renderer().response_ids("correct"), None),
        ]
        trajectory = Trajectory("agent", turns, uid=f"task-{number}:0/agent")
        metadata = [{"data_source": str(number % 2)}]
        groups.append(TrajectoryGroup(group_id=f"task-{number}:agent", trajectories=[trajectory], metadata=metadata))
    return groups


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(prompt_logprobs_app(model())) as url:
        yield url


class TestModel(TeacherContract):
    name = "rllm-local/model"
    options = ({"path": "tiny"}, {"path": "tiny", "max_tokens_per_microbatch": 16})

    def setup(self) -> TeacherSetup:
        return setup()


class TestPolicy(TeacherContract):
    name = "rllm/policy"
    options = ({"prompt": HINT},)

    def setup(self) -> TeacherSetup:
        return setup()

    def groups(self) -> list[TrajectoryGroup]:
        return conversations()


class TestServer(TeacherContract):
    name = "rllm/server"
    options = ({"url": "http://127.0.0.1:1/v1"},)

    @pytest.fixture(autouse=True)
    def _address(self, address: str) -> None:
        self.address = address

    def load_plugin(self) -> Any:
        return lambda params, setup: ServerTeacher(params.model_copy(update={"url": self.address}), setup)


class TestBySource(TeacherContract):
    name = "rllm/by_source"
    options = ({"teachers": {"0": "model:tiny", "1": {"name": "model", "path": "tiny", "dtype": "bfloat16"}}},)

    def setup(self) -> TeacherSetup:
        return setup()

    def groups(self) -> list[TrajectoryGroup]:
        return conversations()


def score(teacher: Any) -> tuple[TokenBatch, NDArray[np.float32]]:
    batch = build_batch(conversations())
    return batch, asyncio.run(teacher.logprobs(batch))


def rows(batch: TokenBatch) -> Iterator[slice]:
    for start, end in zip(batch.row_offsets, batch.row_offsets[1:], strict=False):
        yield slice(int(start), int(end))


@pytest.mark.parametrize("kind", ["model", "server"])
def test_logprobs_are_hugging_faces(kind: str, address: str) -> None:
    params = TeacherModelParams(path="tiny")
    teacher = ModelTeacher(params, setup()) if kind == "model" else ServerTeacher(ServerParams(url=address), setup())
    batch, logprobs = score(teacher)
    for row in rows(batch):
        expected = np.array([0, *hugging_face_logprobs(model(), batch.tokens[row].tolist())])
        sampled = batch.loss_mask[row]
        np.testing.assert_allclose(logprobs[row][sampled], expected[sampled], rtol=0, atol=1e-5)


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """A second model, which is also in the directory `tmp_path`."""
    made = tiny.build_model(len(renderer().tokenizer), 99).eval()
    made.save_pretrained(tmp_path)
    renderer().tokenizer.save_pretrained(tmp_path)
    return made


def test_each_row_has_its_teachers_logprobs(other: Any, tmp_path: Path) -> None:
    params = BySourceParams(teachers={"1": f"model:{tmp_path}", "0": {"name": "model", "path": "tiny"}})
    batch, logprobs = score(BySource(params, setup()))
    for row, teacher in zip(rows(batch), (model(), other, model()), strict=True):
        expected = np.array([0, *hugging_face_logprobs(teacher, batch.tokens[row].tolist())])
        sampled = batch.loss_mask[row]
        np.testing.assert_allclose(logprobs[row][sampled], expected[sampled], rtol=0, atol=1e-5)


def assert_likeliest(batch: TokenBatch, teacher: Any, models: tuple[Any, ...], k: int | None) -> None:
    """Compare the likeliest tokens of each row with its Hugging Face model."""
    ids, logprobs = asyncio.run(teacher.top_logprobs(batch, k))
    expected = []
    for row, its in zip(rows(batch), models, strict=True):
        sampled = batch.loss_mask[row][1:]
        expected.append(hugging_face_distributions(its, batch.tokens[row].tolist()).numpy()[sampled])
    of_all = np.concatenate(expected)
    assert ids.shape == logprobs.shape == (len(of_all), k or of_all.shape[1])
    np.testing.assert_allclose(np.take_along_axis(of_all, ids.astype(np.int64), 1), logprobs, rtol=0, atol=1e-5)
    np.testing.assert_allclose(-np.sort(-of_all, axis=1)[:, :k], logprobs, rtol=0, atol=1e-5)
    assert all(len(set(row.tolist())) == len(row) for row in ids)


@pytest.mark.parametrize(("kind", "k"), [("model", None), ("model", 7), ("server", 7)])
def test_likeliest_tokens_are_hugging_faces(kind: str, k: int | None, address: str) -> None:
    params = TeacherModelParams(path="tiny", max_tokens_per_microbatch=16)
    teacher = ModelTeacher(params, setup()) if kind == "model" else ServerTeacher(ServerParams(url=address), setup())
    assert_likeliest(build_batch(conversations()), teacher, (model(),) * 3, k)


def test_each_row_has_its_teachers_likeliest_tokens(other: Any, tmp_path: Path) -> None:
    params = BySourceParams(teachers={"1": f"model:{tmp_path}", "0": "model:tiny"})
    assert_likeliest(build_batch(conversations()), BySource(params, setup()), (model(), other, model()), 5)


def test_server_with_too_few_tokens_is_an_error(address: str) -> None:
    teacher = ServerTeacher(ServerParams(url=address), setup())
    with pytest.raises(BackendError) as caught:
        asyncio.run(teacher.top_logprobs(build_batch(conversations()), 30))
    assert caught.value.code == "bad-service-answer"


def test_row_without_teacher_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        score(BySource(BySourceParams(teachers={"0": "model:tiny"}), setup()))
    assert caught.value.code == "task-without-teacher"


def test_policy_scores_after_its_longer_prompt() -> None:
    batch, logprobs = score(PolicyTeacher(PolicyParams(prompt=HINT), setup()))
    for number, row in enumerate(rows(batch)):
        sampled = batch.loss_mask[row]
        first = int(sampled.argmax())
        system = f"{HINT}\n\nnumber" if number == 2 else HINT
        user = {"role": "user", "content": f"{number} plus 1 is"}
        prompt = renderer().prompt([{"role": "system", "content": system}, user]).tolist()
        tokens = [*prompt, *batch.tokens[row][first:].tolist()]
        expected = np.array(hugging_face_logprobs(model(), tokens))[len(prompt) - 1 :]
        np.testing.assert_allclose(logprobs[row][sampled], expected[sampled[first:]], rtol=0, atol=1e-5)


def test_policy_needs_the_messages_of_the_prompt() -> None:
    groups = conversations()
    groups[0].trajectories[0].steps[0].messages = ()
    with pytest.raises(RolloutError) as caught:
        asyncio.run(PolicyTeacher(PolicyParams(prompt=HINT), setup()).logprobs(build_batch(groups)))
    assert caught.value.code == "teacher-without-messages"


def test_server_needs_temperature_one(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerTeacher(ServerParams(url=address), setup(temperature=0.7))
    assert caught.value.code == "teacher-temperature"


def test_server_that_is_not_there_is_an_error() -> None:
    params = ServerParams(url="http://127.0.0.1:1/v1", retries=0)
    with pytest.raises(BackendError) as caught:
        score(ServerTeacher(params, setup()))
    assert caught.value.code == "service-failed"


def test_model_with_other_tokens_is_an_error(other: Any, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    saved = json.loads(file.read_text())
    vocabulary = saved["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    file.write_text(json.dumps(saved))
    with pytest.raises(ConfigError) as caught:
        score(ModelTeacher(TeacherModelParams(path=str(tmp_path)), setup()))
    assert caught.value.code == "teacher-with-other-tokens"


@pytest.mark.parametrize("k", [None, 7])
def test_padding_of_vocabularies_is_ignored(k: int | None, tmp_path: Path) -> None:
    """The rows of the teacher's padding have large weights. The trained model has padding, too, and samples it."""
    tokens = len(renderer().tokenizer)
    padded = tiny.build_model(tokens + 64, 0).eval()
    torch.nn.init.normal_(padded.lm_head.weight)
    for name, weights in model().state_dict().items():
        padded.state_dict()[name][: len(weights)] = weights
    padded.save_pretrained(tmp_path)
    renderer().tokenizer.save_pretrained(tmp_path)
    teacher = ModelTeacher(TeacherModelParams(path=str(tmp_path)), setup())
    assert_likeliest(build_batch(conversations()), teacher, (model(),) * 3, k)
    trajectory = Trajectory("agent", [Step([1], [tokens + 99, 2], [-1.0, -1.0])])
    batch = build_batch([TrajectoryGroup(group_id="task:agent", trajectories=[trajectory])])
    batch = batch.with_columns(old_logprobs=np.array([0, -20, -1], np.float32))
    expected = [-20, hugging_face_logprobs(model(), [1, 0, 2])[1]]
    np.testing.assert_allclose(asyncio.run(teacher.logprobs(batch))[1:], expected, rtol=0, atol=1e-5)
