"""Serve a model to deployed agents until a signal. The engine runs in this process, the gateway in a second process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rllm.evaluation.engines import open_engine
from rllm.planning import RunPlan
from rllm_core.contracts.engine import Completion, OnTokens, RolloutEngine, SamplingParams
from rllm_core.errors import BackendError
from rllm_core.rollout.per_rollout_engine import PerRolloutEngine
from rllm_core.schema.run_config import RunConfig
from rllm_core.seeding import derive_seed
from rllm_gateway.deployment import Deployment
from rllm_gateway.link import SampleRequest
from rllm_gateway.link_trainer import RolloutSampler
from rllm_gateway.process import Place, gateway_process
from rllm_serving.process_directory import ProcessDirectory
from rllm_serving.until_stopped import Stop


class DeployedSampler(RolloutSampler):
    """Sampler that keeps no calls in memory. The store has them, and a session may be open for days."""

    async def sample(self, request: SampleRequest, on_tokens: OnTokens | None = None) -> Completion:
        """See `RolloutSampler.sample`."""
        completion = await super().sample(request, on_tokens)
        self.calls.clear()
        return completion


async def deploy(plan: RunPlan, place: Place, token_file: Path, run: str, ready: Callable[[str], None]) -> int:
    """Serve the model of a plan until SIGTERM or SIGINT, and return the exit code.

    Tokens are sampled as in training (``sampling.train``), so that they can be trained on.

    Args:
        plan: plan with the model and the config.
        place: address and store of the gateway.
        token_file: file with the admin token.
        run: run name that the sessions are stored under.
        ready: receives the gateway's URL when it answers requests.

    Raises:
        ConfigError: the port is in use, or the gateway's process cannot load the renderer.
        BackendError: the backend or the gateway does not start, or the gateway has stopped.
    """
    stop = Stop()
    deployment = Deployment(token_file=str(token_file), spec=_spec(plan.config, run))
    with ProcessDirectory("rllm-gateway-") as files:
        async with open_engine(plan) as engine:
            samplers = _samplers(plan, engine)
            renderer = engine.renderer
            async with gateway_process(renderer, place, files.path, deployment, samplers) as (link, url):
                ready(url)
                stopping, ended = asyncio.create_task(stop.event.wait()), asyncio.create_task(link.ended())
                await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if not stop.event.is_set():
                    raise BackendError(
                        "gateway-ended",
                        f"The gateway has stopped. Answered calls are in {place.store}.",
                        "Read its last log lines below, then start `rllm gateway serve` again.",
                        link.last_words,
                    )
                ended.cancel()
    return stop.exit_code


def _spec(config: RunConfig, run: str) -> dict[str, object]:
    """Return the fields that all sessions have in common. See `SessionSpec`."""
    processing = config.rllm.sdk.processing
    return {
        "run": run,
        "max_tokens": config.data.max_response_length,
        "max_prompt_length": config.data.max_prompt_length,
        "max_calls": config.rllm.agent.max_steps,
        "temperature": config.sampling.train.temperature,
        "accumulate_reasoning": config.rllm.accumulate_reasoning,
        "group_key": processing.groupby_key,
        "name_key": processing.traj_name_key,
        "unsupported": config.rllm.workflow.workflow_args.get("unsupported", "refuse"),
    }


def _samplers(plan: RunPlan, engine: RolloutEngine) -> Callable[[str], RolloutSampler]:
    config = plan.config

    def sampler_of(session: str) -> RolloutSampler:
        sampling = SamplingParams(
            max_tokens=config.data.max_response_length,
            seed=derive_seed(config.rllm.trainer.seed, "deployed", session),
            **config.sampling.train.model_dump(),
        )
        most = config.data.max_prompt_length
        return DeployedSampler(
            PerRolloutEngine(engine), sampling, session, max_prompt_length=most, engine_stops=plan.stop_texts
        )

    return sampler_of
