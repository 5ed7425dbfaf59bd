"""The real client trains, samples, saves and continues."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types

from .conftest import DEADLINE, KEY, Server, Start

Connect = Callable[..., Any]


def datum(first: int, length: int = 3) -> types.Datum:
    targets = list(range(first, first + length))
    return types.Datum(
        model_input=types.ModelInput.from_ints(targets),
        loss_fn_inputs={"target_tokens": targets, "weights": [1.0] * length},
    )


def train(trainer: Any, first: int = 1) -> tuple[Any, Any]:
    """One step, both requests submitted before either is awaited."""
    gradient = trainer.forward_backward([datum(first)], "cross_entropy")
    step = trainer.optim_step(types.AdamParams(learning_rate=0.1))
    return gradient.result(DEADLINE), step.result(DEADLINE)


def test_steps_are_executed_and_log_probs_come_back(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake", rank=4).result()
    gradient, step = train(trainer, first=5)
    assert gradient.loss_fn_outputs[0]["logprobs"].tolist() == [-5.0, -6.0, -7.0]
    assert gradient.metrics == {"loss:sum": 3.0}
    assert step.metrics["value"] == 3.0
    assert step.metrics["nothing"] != step.metrics["nothing"], "a number that is not one arrives as such"
    assert trainer.get_info().model_data.tokenizer_id == "fake-tokenizer"


def test_log_probs_of_different_shapes_return_in_order(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    wide = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=[1, 2, 3, 4, 5, 6], dtype="int64", shape=[2, 3])},
    )
    result = trainer.forward_backward([datum(1), wide, wide, datum(2, 1)], "cross_entropy").result(DEADLINE)
    found = [output["logprobs"].to_numpy().tolist() for output in result.loss_fn_outputs]
    rows = [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]
    assert found == [[-1.0, -2.0, -3.0], rows, rows, [-2.0]]


def test_sparse_targets_are_read_as_dense_ones(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    sparse = types.TensorData(
        data=[7, 9], dtype="int64", shape=[2, 8], sparse_crow_indices=[0, 1, 2], sparse_col_indices=[0, 5]
    )
    example = types.Datum(model_input=types.ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": sparse})
    result = trainer.forward([example], "cross_entropy").result(DEADLINE)
    expected = [[-7.0] + [0.0] * 7, [0.0] * 5 + [-9.0, 0.0, 0.0]]
    assert result.loss_fn_outputs[0]["logprobs"].to_numpy().tolist() == expected


def test_a_forward_pass_keeps_the_gradient(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    trainer.forward([datum(1)], "cross_entropy").result(DEADLINE)
    assert trainer.optim_step(types.AdamParams()).result(DEADLINE).metrics["value"] == 0.0


def test_parts_of_large_request_run_in_order(start: Start, connect: Connect) -> None:
    server = start(fwdbwd_max_chunk_len=2)
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    gradient = trainer.forward_backward([datum(first) for first in range(1, 10)], "cross_entropy")
    step = trainer.optim_step(types.AdamParams())
    outputs = gradient.result(DEADLINE).loss_fn_outputs
    assert [output["logprobs"].tolist()[0] for output in outputs] == [-float(first) for first in range(1, 10)]
    assert step.result(DEADLINE).metrics["value"] == 27.0
    parts = [("forward_backward", first) for first in (1, 3, 5, 7, 9)]
    assert server.host.calls == [*parts, ("optim_step", 0)]


def test_snapshot_stays_constant_and_inflight_sampler_follows(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    prompt, params = types.ModelInput.from_ints([1, 2]), types.SamplingParams(max_tokens=2)

    def drawn(sampler: Any) -> list[int]:
        return list(sampler.sample(prompt, 1, params).result(DEADLINE).sequences[0].tokens)

    train(trainer)
    snapshot = trainer.save_weights_and_get_sampling_client().result()
    inflight = trainer.save_weights_and_get_sampling_client(kind="inflight").result()
    assert drawn(snapshot) == drawn(inflight) == [3, 3]
    train(trainer)
    newer = trainer.save_weights_and_get_sampling_client(kind="inflight").result()
    assert drawn(snapshot) == [3, 3]
    assert drawn(inflight) == drawn(newer) == [6, 6]


def test_samples_have_ids_and_prompt_log_probs(server: Server, connect: Connect) -> None:
    sampler = connect(server).create_sampling_client(base_model="Big/Name").result()
    prompt = types.ModelInput.from_ints([4, 5, 6])
    result = sampler.sample(prompt, 2, types.SamplingParams(max_tokens=3), include_prompt_logprobs=True).result(
        DEADLINE
    )
    assert [sequence.logprobs for sequence in result.sequences] == [[-0.5] * 3] * 2
    assert len({sequence.sequence_id for sequence in result.sequences}) == 2
    assert result.prompt_logprobs == [None, -5.0, -6.0]
    assert sampler.compute_logprobs(prompt, prompt_logprobs_last_n=1).result(DEADLINE) == [None, None, -6.0]


def test_the_likeliest_tokens_are_told(server: Server, connect: Connect) -> None:
    sampler = connect(server).create_sampling_client(base_model="fake").result()
    prompt, params = types.ModelInput.from_ints([4, 5, 6]), types.SamplingParams(max_tokens=2, temperature=0.5)

    def sample(**what: Any) -> Any:
        return sampler.sample(prompt, 2, params, **what).result(DEADLINE)

    both = sample(topk_prompt_logprobs=2, topk_sample_logprobs=1)
    assert both.topk_prompt_logprobs == [None, [(0, -1.0), (1, -2.0)], [(0, -1.0), (1, -2.0)]]
    assert [sequence.topk_logprobs for sequence in both.sequences] == [[[(0, -2.0)]] * 2] * 2
    assert not both.prompt_logprobs
    last = sample(topk_prompt_logprobs=1, include_prompt_logprobs=True, prompt_logprobs_last_n=1)
    assert last.topk_prompt_logprobs == [None, None, [(0, -1.0)]]
    assert last.prompt_logprobs == [None, None, -6.0]
    assert last.sequences[0].topk_logprobs is None


def test_prompt_that_fills_context_has_log_probs(server: Server, connect: Connect) -> None:
    sampler = connect(server).create_sampling_client(base_model="fake").result()
    assert len(sampler.compute_logprobs(types.ModelInput.from_ints([1] * 64)).result(DEADLINE)) == 64
    with pytest.raises(tinker.BadRequestError, match=r"64 tokens\. fake has a context of 64"):
        sampler.sample(types.ModelInput.from_ints([1] * 64), 1, types.SamplingParams(max_tokens=1)).result(DEADLINE)


def test_a_restarted_server_continues_from_checkpoints(start: Start, connect: Connect, tmp_path: Path) -> None:
    before = start(checkpoints=tmp_path)
    trainer = connect(before).create_lora_training_client(base_model="fake", rank=8).result()
    train(trainer)
    saved = trainer.save_state("middle").result(DEADLINE).path
    for_sampling = trainer.save_weights_for_sampler("middle").result(DEADLINE).path
    client = connect(start(checkpoints=tmp_path))
    with_state = client.create_training_client_from_state_with_optimizer(saved).result()
    assert with_state.get_info().lora_rank == 8
    assert train(with_state)[1].metrics["steps"] == 2.0
    without = client.create_training_client_from_state(saved).result()
    metrics = train(without)[1].metrics
    assert (metrics["value"], metrics["steps"]) == (6.0, 1.0)
    sampler = client.create_sampling_client(model_path=for_sampling).result()
    result = sampler.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=1)).result(DEADLINE)
    assert result.sequences[0].tokens == [3]
    assert sampler.get_base_model() == "fake"


def test_checkpoints_can_be_listed_deleted_and_expire(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    path = trainer.save_state("one", user_metadata={"note": "kept"}).result(DEADLINE).path
    rest = tinker.RestClient(base_url=server.url, api_key=KEY)
    (found,) = rest.list_checkpoints(trainer.model_id).result(DEADLINE).checkpoints
    assert (found.tinker_path, found.checkpoint_type, found.user_metadata) == (path, "training", {"note": "kept"})
    assert found.size_bytes and found.expires_at is None
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result(DEADLINE)
    (found,) = rest.list_checkpoints(trainer.model_id).result(DEADLINE).checkpoints
    assert (found.expires_at - found.time).total_seconds() == pytest.approx(3600, abs=60)
    run = rest.get_training_run(trainer.model_id).result(DEADLINE)
    assert run.last_checkpoint.tinker_path == path
    rest.delete_checkpoint_from_tinker_path(path).result(DEADLINE)
    assert not rest.list_checkpoints(trainer.model_id).result(DEADLINE).checkpoints


def test_open_objects_are_listed_and_described(start: Start, connect: Connect) -> None:
    server = start()
    client = connect(server)
    rest = tinker.RestClient(base_url=server.url, api_key=KEY)
    first, second = (client.create_lora_training_client(base_model="fake").result() for _ in range(2))
    paths = [trainer.save_state("one").result(DEADLINE).path for trainer in (first, second)]
    sampler = client.create_sampling_client(base_model="fake").result()
    session_id = first.model_id.partition(":")[0]
    assert rest.list_sessions().result(DEADLINE).sessions == [session_id]
    found = rest.get_session(session_id).result(DEADLINE)
    assert found.training_run_ids == [first.model_id, second.model_id]
    assert found.sampler_ids == [sampler._sampling_session_id]
    assert rest.get_sampler(found.sampler_ids[0]).result(DEADLINE).base_model == "fake"
    runs = rest.list_training_runs(limit=1, offset=1).result(DEADLINE)
    assert [run.training_run_id for run in runs.training_runs] == [first.model_id]
    assert runs.cursor.total_count == 2
    listed = rest.list_user_checkpoints(limit=1, offset=1).result(DEADLINE).checkpoints
    assert [checkpoint.tinker_path for checkpoint in listed] == paths[:1]
    assert rest.get_weights_info_by_tinker_path(paths[0]).result(DEADLINE).base_model == "fake"
    assert [model.model_name for model in rest.get_server_capabilities().result(DEADLINE).supported_models] == [
        "fake",
        "Big/Name",
    ]
    with pytest.raises(tinker.NotFoundError, match="left checkpoints"):
        rest.get_training_run("other:train:0").result(DEADLINE)


def test_without_the_flag_stand_in_losses_are_refused(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    with pytest.raises(tinker.RequestFailedError, match="--stand-in-losses"):
        trainer.forward_backward([datum(1)], "stable_reinforce").result(DEADLINE)
    sampler = trainer.save_weights_and_get_sampling_client(record_stability_info=True).result(DEADLINE)
    with pytest.raises(tinker.BadRequestError, match="--stand-in-losses"):
        sampler.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=1)).result(DEADLINE)


def test_name_is_reused_only_with_overwrite(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    trainer.save_state("one").result(DEADLINE)
    with pytest.raises(tinker.RequestFailedError, match="overwrite=True"):
        trainer.save_state("one").result(DEADLINE)
    assert trainer.save_state("one", overwrite=True).result(DEADLINE).path.endswith("/weights/one")


def test_full_disk_fails_request_and_leaves_nothing(start: Start, connect: Connect, tmp_path: Path) -> None:
    server = start(checkpoints=tmp_path)
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    server.host.disk_is_full = True
    with pytest.raises(tinker.RequestFailedError, match=os.strerror(errno.ENOSPC)) as failed:
        trainer.save_state("one").result(DEADLINE)
    assert failed.value.category == types.RequestErrorCategory.Server
    assert not [entry for entry in tmp_path.rglob("*") if entry.is_file()]
    server.host.disk_is_full = False
    assert trainer.save_state("one").result(DEADLINE).path
    assert train(trainer)[1].metrics["value"] == 3.0


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", "x" * 129, "ä"])
def test_names_that_are_no_names_are_refused(server: Server, connect: Connect, name: str) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    with pytest.raises(tinker.RequestFailedError, match=r"name a checkpoint|must be a text"):
        trainer.save_state(name).result(DEADLINE)


def test_unknown_models_and_checkpoints_are_refused_at_once(server: Server, connect: Connect) -> None:
    client = connect(server)
    with pytest.raises(tinker.NotFoundError, match=r"'other'.*'fake', 'Big/Name'"):
        client.create_lora_training_client(base_model="other").result()
    with pytest.raises(tinker.NotFoundError, match="'other'"):
        client.create_sampling_client(base_model="other").result()
    with pytest.raises(tinker.NotFoundError, match="tinker://a:train:0/weights/one"):
        client.create_training_client_from_state("tinker://a:train:0/weights/one").result()
    with pytest.raises(tinker.BadRequestError, match="tinker://nonsense"):
        client.create_sampling_client(model_path="tinker://nonsense").result()


def test_prompt_targets_return_in_the_requests_layout(server: Server, connect: Connect) -> None:
    sampler = connect(server).create_sampling_client(base_model="fake").result(DEADLINE)
    prompt, params = types.ModelInput.from_ints([1, 2, 3]), types.SamplingParams(max_tokens=1)
    dense = types.TensorData(data=[4, 5, -1, 7], dtype="int64", shape=[2, 2])
    found = sampler.sample(prompt, 1, params, target_prompt_logprobs=dense, prompt_alt_tokens_k=2).result(DEADLINE)
    assert found.target_prompt_logprobs.to_numpy().tolist() == [[-4.0, -5.0], [0.0, -7.0]]
    assert found.prompt_alt_tokens.tokens.to_numpy().tolist() == [[3, 3], [3, 3]]
    assert found.prompt_alt_tokens.logprobs.to_numpy().tolist() == [[-3.0, -3.0], [-3.0, -3.0]]
    sparse = types.TensorData(
        data=[4, 7], dtype="int64", shape=[2, 9], sparse_crow_indices=[0, 1, 2], sparse_col_indices=[8, 0]
    )
    targets = sampler.sample(prompt, 1, params, target_prompt_logprobs=sparse).result(DEADLINE).target_prompt_logprobs
    assert (targets.data, targets.sparse_crow_indices, targets.sparse_col_indices) == ([-4.0, -7.0], [0, 1, 2], [8, 0])


def test_a_model_that_cannot_be_created_says_why(server: Server, connect: Connect) -> None:
    with pytest.raises(tinker.RequestFailedError, match="rank is above 64") as failed:
        connect(server).create_lora_training_client(base_model="fake", rank=65).result()
    assert failed.value.category == types.RequestErrorCategory.User


def test_images_are_refused(server: Server, connect: Connect) -> None:
    trainer = connect(server).create_lora_training_client(base_model="fake").result()
    picture = types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png", expected_tokens=3)])
    with pytest.raises(tinker.RequestFailedError, match=r"Datum 0: .*no images"):
        example = types.Datum(model_input=picture, loss_fn_inputs={"target_tokens": [1, 2, 3]})
        trainer.forward_backward([example], "cross_entropy").result(DEADLINE)
    sampler = connect(server).create_sampling_client(base_model="fake").result()
    with pytest.raises(tinker.BadRequestError, match="no images"):
        sampler.sample(picture, 1, types.SamplingParams(max_tokens=1)).result(DEADLINE)


def test_a_finished_session_releases_its_models(server: Server, connect: Connect) -> None:
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    model_id = client.create_lora_training_client(base_model="fake").result().model_id
    assert model_id in server.host.models
    client.close("success").result(DEADLINE)
    assert model_id not in server.host.models
    response = server.post("get_info", model_id=model_id)
    assert response.status_code == 410
    assert "client" in response.json()["detail"]
