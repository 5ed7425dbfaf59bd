"""Answers to queries about models, checkpoints, sessions and the server itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tinker import types

from rllm_serving.tinker_additions import MAX_SEEDS, MODEL_KEY, PROMPTS_KEY
from rllm_tinker_server.checkpoints import Checkpoint, Kind
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import BaseModelInfo
from rllm_tinker_server.sessions import SamplingSession, Session, TrainedModel
from rllm_tinker_server.turns import Answer
from rllm_tinker_server.wire import answer, json_answer

OWNER = "local"
TYPES: dict[Kind, types.CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}


def client_config(limits: TinkerLimits) -> Answer:
    config = types.ClientConfigResponse(
        fwdbwd_max_chunk_len=limits.fwdbwd_max_chunk_len,
        fwdbwd_max_chunk_bytes_count=limits.fwdbwd_max_chunk_bytes,
    )
    # Newer clients no longer ask: those before 0.25 send every pass as protobuf where the first two are set, and those
    # before 0.30 or so ask whether a checkpoint can be loaded without creating a model first.
    older = {"proto_write_fwdbwd": True, "fwd_via_fwdbwd": True, "create_model_via_load_weights": True}
    return json_answer({**config.model_dump(), **older})


def dynamic_config() -> Answer:
    return answer(types.ClientDynamicConfigResponse(sample_cancel_enabled=True))


def create_session_response(session_id: str) -> Answer:
    return answer(types.CreateSessionResponse(session_id=session_id))


def heartbeat_response() -> Answer:
    return answer(types.SessionHeartbeatResponse())


def session_info(session: Session) -> Answer:
    return json_answer(
        {
            "training_run_ids": list(session.models),
            "sampler_ids": list(session.samplers),
            "user_metadata": _texts(session.user_metadata),
            "display_name": session.display_name,
        }
    )


def session_list(session_ids: Sequence[str]) -> Answer:
    return answer(types.ListSessionsResponse(sessions=list(session_ids)))


def sampler_info(sampler: SamplingSession) -> Answer:
    return answer(
        types.GetSamplerResponse(
            sampler_id=sampler.sampler_id, base_model=sampler.base_model, model_path=sampler.model_path
        )
    )


def model_info(model: TrainedModel, base: BaseModelInfo) -> Answer:
    return answer(
        types.GetInfoResponse(
            type="get_info",
            model_data=types.ModelData(model_name=model.base_model, tokenizer_id=base.tokenizer),
            model_id=model.model_id,
            is_lora=True,
            lora_rank=model.spec.rank,
            model_name=model.base_model,
        )
    )


def capabilities(names: Sequence[str], base: BaseModelInfo) -> Answer:
    models = [{"model_name": name, "max_context_length": base.max_context} for name in names]
    return json_answer({"supported_models": [{**model, "trainable": True, "sampleable": True} for model in models]})


def health_response(base: BaseModelInfo) -> Answer:
    # Clients ignore unknown keys. Our backend requests several samples at once, and comparisons of weights.
    model = {"layers": base.layers, "vocabulary": base.vocabulary, "dtype": base.dtype}
    health = types.HealthResponse(status="ok").model_dump()
    return json_answer({**health, PROMPTS_KEY: MAX_SEEDS, MODEL_KEY: model})


def telemetry_response() -> Answer:
    return answer(types.TelemetryResponse(status="accepted"))


def weights_info(checkpoint: Checkpoint) -> Answer:
    spec = checkpoint.spec
    return answer(
        types.WeightsInfoResponse(
            base_model=checkpoint.base_model,
            is_lora=True,
            lora_rank=spec.rank,
            train_unembed=spec.train_unembed,
            train_mlp=spec.train_mlp,
            train_attn=spec.train_attn,
        )
    )


def checkpoint_list(checkpoints: Sequence[Checkpoint], *, offset: int, limit: int, total: int) -> Answer:
    return json_answer(
        {
            "checkpoints": [_checkpoint(checkpoint) for checkpoint in checkpoints],
            "cursor": {"offset": offset, "limit": limit, "total_count": total},
        }
    )


def training_run(model_id: str, model: TrainedModel | None, checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """Describe the training run of a model in memory, or of a model with checkpoints. At least one must exist."""
    described = model if model is not None else checkpoints[-1]
    last: dict[str, Checkpoint] = {checkpoint.path.kind: checkpoint for checkpoint in checkpoints}
    seen = model.last_request if model is not None else checkpoints[-1].created
    run = types.TrainingRun(
        training_run_id=model_id,
        base_model=described.base_model,
        model_owner=OWNER,
        is_lora=True,
        lora_rank=described.spec.rank,
        last_request_time=_moment(seen),
        user_metadata=None if model is None else _texts(model.user_metadata),
    ).model_dump(mode="json")
    run["last_checkpoint"] = _checkpoint(last["weights"]) if "weights" in last else None
    run["last_sampler_checkpoint"] = _checkpoint(last["sampler_weights"]) if "sampler_weights" in last else None
    return run


def download_urls(urls: Mapping[str, str], expires: float) -> Answer:
    """Return the URLs of a checkpoint's files, by name. `expires` is in seconds since the epoch."""
    return json_answer({"urls": dict(urls), "expires": _moment(expires).isoformat()})


def training_run_list(runs: Sequence[dict[str, Any]], *, offset: int, limit: int, total: int) -> Answer:
    return json_answer(
        {"training_runs": list(runs), "cursor": {"offset": offset, "limit": limit, "total_count": total}}
    )


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    expires = checkpoint.expires
    return types.Checkpoint(
        checkpoint_id=checkpoint.path.checkpoint_id,
        checkpoint_type=TYPES[checkpoint.path.kind],
        time=_moment(checkpoint.created),
        tinker_path=str(checkpoint.path),
        size_bytes=checkpoint.size,
        user_metadata=_texts(checkpoint.user_metadata),
        public=checkpoint.public,
        expires_at=None if expires is None else _moment(expires),
    ).model_dump(mode="json")


def _texts(metadata: Mapping[str, Any] | None) -> dict[str, str] | None:
    return None if metadata is None else {key: str(value) for key, value in metadata.items()}


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
