"""The built-in agent: plain chat."""

from __future__ import annotations

from collections.abc import Sequence

from rllm_core.contracts.agent import Agent
from rllm_core.data.messages import Message, Response
from rllm_core.rollout.options import MathAgentParams


class MathAgent(Agent):
    """An agent that passes observations on as user messages and uses the response's content as the action."""

    def __init__(self, params: MathAgentParams) -> None:
        prompt = params.system_prompt
        self._opening: list[Message] = [] if prompt is None else [{"role": "system", "content": prompt}]

    def observe(self, observation: str | Sequence[Message]) -> Sequence[Message]:
        said = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
        opening, self._opening = self._opening, []
        return [*opening, *said]

    def act(self, response: Response) -> str:
        return response.content
