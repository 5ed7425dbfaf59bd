"""A backend without a model, for runs in virtual time. Its weights are a digest of all trained tokens.

Sampled tokens are a function of weights, prompt and seed. Their duration depends on a separate seed. Two runs that end
with the same digest have trained on the same tokens in the same order.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.engine import Completion, Overlap, SamplingParams
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome
from rllm_core.contracts.params import NoParams, Params
from rllm_core.contracts.workflow import Workflow, WorkflowPlugin
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory
from rllm_core.data.version_spans import VersionSpan
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.conversation import Conversation
from rllm_core.rollout.template_renderer import TemplateRenderer

TASKS = 12
STOP = 127
COLUMNS = ("tokens", "loss_mask", "sampling_logprobs", "old_logprobs", "advantages", "row_offsets", "versions")


class ScriptSection(Params):
    timing: int = Field(0, description="Seed of all delays.")
    spread: float = Field(1.5, description="Sigma of the lognormal seconds of a response.")
    straggler: float = Field(1.0, description="How many times as long one rollout in fifty takes.")
    update_seconds: float = Field(3.0, description="Seconds of an update.")
    lengths: int = Field(4, description="Most tokens of a response.")
    dies_at: int = Field(-1, description="Version whose sampling fails; -1: none.")


class ScriptSections(Params):
    script: ScriptSection = Field(default_factory=ScriptSection, description="The world.")


class Tokenizer:
    """A tokenizer with a token per character."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        return "".join(f"<{message['role'][0]}>{message['content']}" for message in conversation) + "<a>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


def _random(*parts: object) -> np.random.Generator:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


class ScriptedEngine:
    def __init__(self, settings: ScriptSection, served: int) -> None:
        self.renderer = TemplateRenderer(Tokenizer(), [STOP])
        self.max_context = 1000
        self.sampled = 0
        self.validated: list[int] = []
        self.answered: list[int] = []
        """Seeds of the answered training calls."""
        self._settings, self._served = settings, served
        self._weights: dict[int, str] = {}
        self._version = 0
        self._calls = 0

    def sync_weights(self, version: int, weights: str) -> None:
        self._version = version
        self._weights[version] = weights
        for old in [each for each in self._weights if each <= version - self._served]:
            del self._weights[old]

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self._calls += 1
        delays = _random("delay", self._settings.timing, self._calls)
        seconds = float(delays.lognormal(0, self._settings.spread))
        seconds *= self._settings.straggler if delays.random() < 0.02 else 1.0
        drawn = _random("response", list(prompt_ids), sampling.seed)
        length = int(drawn.integers(1, self._settings.lengths + 1))
        tokens, logprobs, versions = [], [], []
        for position in range(min(length, sampling.max_tokens)):
            await asyncio.sleep(seconds / length)
            version = self._version if sampling.weight_version is None else sampling.weight_version
            if version == self._settings.dies_at:
                raise RuntimeError("the engine is dead")
            choice = _random(self._weights[version], list(prompt_ids), tokens, sampling.seed, position)
            tokens.append(int(choice.integers(97, 123)))
            logprobs.append(-float(choice.exponential()) - 0.1)
            versions.append(version)
        self.sampled += len(tokens)
        if session.startswith("val"):
            self.validated += versions
        if sampling.task_batch is not None:
            self.answered.append(sampling.seed)
        spans = [VersionSpan(version, versions.count(version)) for version in sorted(set(versions))]
        return Completion(
            token_ids=np.array(tokens, np.int32),
            logprobs=np.array(logprobs, np.float32),
            finish_reason="length",
            weight_version=min(versions),
            version_spans=tuple(spans) if len(spans) > 1 else (),
        )

    async def end_session(self, session: str) -> None:
        pass


class ScriptedBackend(Backend):
    last: ScriptedBackend
    """The backend of the newest run."""

    def __init__(self) -> None:
        ScriptedBackend.last = self
        self.weights = "first"
        self.updates: list[np.ndarray[Any, Any]] = []
        self.updating = False
        self.served: list[int] = []

    async def start(self, run: RunContext) -> Any:
        self._settings = run.backend_config.script
        self.context = run
        self.engine = ScriptedEngine(self._settings, run.versions_served)
        self.engine.sync_weights(0, self.weights)
        return self.engine

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        old = batch.sampling_logprobs - np.float32(0.01) if self.context.recomputes_old_logprobs else None
        return batch.with_columns(old_logprobs=batch.sampling_logprobs if old is None else old)

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        self.updating = True
        await asyncio.sleep(self._settings.update_seconds)
        digest = hashlib.sha256(self.weights.encode())
        for name in COLUMNS:
            digest.update(np.ascontiguousarray(getattr(batch, name)).tobytes())
        digest.update(repr((plan.seed, plan.global_step, plan.rollout_correction)).encode())
        self.weights = digest.hexdigest()
        self.updates.append(batch.versions[batch.loss_mask])
        self.updating = False
        return UpdateResult(metrics={"actor/loss": 0.0})

    async def sync_weights(self, version: int) -> None:
        self.engine.sync_weights(version, self.weights)

    async def save(self, directory: Path) -> None:
        (directory / "weights.json").write_text(json.dumps(self.weights))

    async def load(self, directory: Path) -> None:
        self.weights = json.loads((directory / "weights.json").read_text())


class Letters(Environment):
    """An environment of one turn. The reward depends on the letters of the response."""

    def __init__(self, params: NoParams) -> None:
        self._number = 0

    @classmethod
    def tasks(cls, split: str, params: NoParams) -> list[Task]:
        return [Task(id=f"{split}{number}", data={"number": number}) for number in range(TASKS)]

    def reset(self, task: Mapping[str, Any]) -> str:
        self._number = task["number"]
        return f"task {self._number}"

    def step(self, action: str) -> Outcome:
        luck = sum(map(ord, action)) + self._number
        return Outcome(reward=float(luck % 3), done=True, correct=luck % 3 == 2)


class Duet(Workflow):
    """A solver that answers twice and a judge that answers once, each with its own rewards."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.episode = episode = Episode(id=uid, termination_reason=TerminationReason.ENV_DONE)
        for role, turns in (("solver", 2), ("judge", 1)):
            trajectory = Trajectory(role)
            episode.trajectories.append(trajectory)
            conversation = Conversation(self.context, trajectory, f"{uid}/{role}#{self.context.sampling.seed}")
            for turn in range(turns):
                conversation.add_observation(f"{role} {task['number']} {turn}")
                step = await conversation.generate()
                step.reward = float(sum(map(ord, step.text)) % 3)
            trajectory.reward = float(sum(step.reward or 0.0 for step in trajectory.steps))
            await conversation.close()
        episode.is_correct = episode.trajectories[0].reward != 0
        return episode


def add_to(registry: Registry, name: str = "scripted", overlap: frozenset[Overlap] | None = None) -> None:
    """Add the backend under a name, with its support for sampling during updates."""
    registry.add(
        BackendPlugin(
            name=name,
            summary="For tests.",
            load_params=lambda: ScriptSections,
            load=lambda: ScriptedBackend,
            config_keys=frozenset(
                {"rllm.algorithm.loss_agg_mode", "rllm.algorithm.entropy.*", "rllm.algorithm.rollout_correction.*"}
            ),
            model_key="script.timing",
            capabilities=Capabilities(
                custom_losses=True,
                columns=frozenset({"old_logprobs"}),
                overlap=frozenset({"fixed", "latest"}) if overlap is None else overlap,
            ),
        )
    )


def registry() -> Registry:
    """Return the installed plugins with this world."""
    found = Registry.load()
    add_to(found)
    found.add(
        EnvironmentPlugin(
            name="letters",
            summary="For tests.",
            load=lambda: Letters,
            blocking=False,
            defaults={"rllm.workflow.name": "multi_turn_workflow"},
        )
    )
    found.add(WorkflowPlugin(name="duet", summary="For tests.", load=lambda: Duet))
    return found


def ahead(staleness: int, partial: bool = False) -> dict[str, Any]:
    """Return settings of asynchronous training."""
    settings = {"rllm.async_training.enable": True, "rllm.async_training.staleness_threshold": staleness}
    return {**settings, "rllm.async_training.partial_rollout": True} if partial else settings
