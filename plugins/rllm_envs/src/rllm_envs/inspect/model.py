"""The policy as a model of inspect. Each of its calls goes to the gateway session of its rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from inspect_ai.model import GenerateConfig, Model, ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
from inspect_ai.solver._task_state import sample_state

from rllm_envs.inspect.options import POLICY
from rllm_gateway.sessions.link import OpenedSession

PROVIDER = "rllm"


class FindSession(Protocol):
    """Takes the epoch of a sample and a seat. Returns the open session of its rollout."""

    async def __call__(self, epoch: int, seat: str) -> OpenedSession: ...


class NoRolloutError(RuntimeError):
    """A model call outside a rollout, or after its end."""


@modelapi(name=PROVIDER)
def _policy_api() -> type[ModelAPI]:
    return PolicyAPI


class PolicyAPI(OpenAICompatibleAPI):
    """Calls the session of the rollout in whose context it is called. Nothing is retried."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        find_session: FindSession | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(
            model_name,
            "http://127.0.0.1",
            "none",
            config or GenerateConfig(),
            service=PROVIDER,
            max_retries=0,
            stream=False,
            **arguments,
        )
        self._find_session = find_session

    async def _generate_completion(self, request: dict[str, Any], config: GenerateConfig) -> Any:
        state = sample_state()
        if state is None or self._find_session is None:
            raise NoRolloutError("The policy was called outside a rollout, for example while the task was loaded.")
        session = await self._find_session(state.epoch, self.model_name)
        client = self.client.with_options(
            base_url=session.openai_url(self.model_name), api_key=session.key, timeout=None
        )
        return await client.chat.completions.create(**request)

    def should_retry(self, ex: BaseException) -> bool:
        return False

    def tools_to_openai(self, tools: Any) -> Any:
        found = super().tools_to_openai(tools)
        for tool in found:
            tool["function"].pop("strict", None)
        return found


class PolicyModel(Model):
    """A model without a cache of responses, because the policy changes and each call is sampled."""

    async def generate(self, *inputs: Any, cache: Any = False, **options: Any) -> ModelOutput:
        return await super().generate(*inputs, cache=False, **options)


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of a task. Its functions get them from `get_model`."""

    policy: Model
    roles: Mapping[str, Model]

    async def close(self) -> None:
        """Close the connections of all models."""
        for model in (self.policy, *self.roles.values()):
            await model.api.aclose()


def make_models(settings: Mapping[str, str | Mapping[str, Any]], find_session: FindSession | None = None) -> Models:
    """Return the models of a task.

    Args:
        settings: the model of each role: a name, arguments of `get_model`, or `POLICY`.
        find_session: finds the session of a call. If it is None, calls of the policy fail.
    """
    roles: dict[str, Model] = {}
    for role, setting in settings.items():
        if setting == POLICY:
            roles[role] = _make_policy(role, find_session)
        elif isinstance(setting, str):
            roles[role] = get_model(setting, memoize=False)
        else:
            options = dict(setting)
            config = GenerateConfig(**options.pop("config", {}))
            roles[role] = get_model(options.pop("model"), config=config, memoize=False, **options)
    return Models(policy=_make_policy(POLICY, find_session), roles=roles)


def _make_policy(seat: str, find_session: FindSession | None) -> Model:
    # rllm limits the number of rollouts at the same time.
    config = GenerateConfig(max_retries=0, max_connections=1_000_000)
    made = get_model(f"{PROVIDER}/{seat}", config=config, memoize=False, find_session=find_session)
    return PolicyModel(made.api, made.config)
