"""The workflow `open_spiel`: one game, with a conversation for each seat that the model plays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

from rllm_core.algorithms.columns import REWARD_ERROR
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.rollout.conversation import Conversation, PromptTooLongError
from rllm_core.seeding import derive_seed
from rllm_envs.open_spiel.games import (
    OpenSpielGames,
    draw_chance,
    load_game,
    make_bot,
    name_actions,
    read_action,
    share_forfeit,
    write_view,
)
from rllm_envs.open_spiel.options import OpenSpielParams

UNTRAINED = "untrained_tokens"
"""Metric: sampled tokens of the seats that the policy plays and that are not trained."""


class UnfinishedError(Exception):
    """The game cannot continue, because a seat has no turn or no room for a prompt left."""

    def __init__(self, reason: TerminationReason) -> None:
        self.reason = reason


class ForfeitError(Exception):
    """A seat answered without a legal action too often."""

    def __init__(self, seat: int) -> None:
        self.seat = seat


@dataclass
class _Table:
    """One game that is being played."""

    params: OpenSpielParams
    game: Any
    state: Any
    chance: random.Random
    moves: random.Random
    """Random numbers of random moves. Chance events do not depend on them."""
    bots: dict[int, Any]
    conversations: dict[int, Conversation]
    counts: Counter[str]


class OpenSpielWorkflow(Workflow):
    """Plays a game to its end. Each trained seat is a trajectory ``player_SEAT``, whose reward is the seat's return.

    If the game fails, the trajectories have no reward, and their info contains the cause.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset({"rllm.agent.max_steps", "rllm.accumulate_reasoning"})

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.episode = Episode(id=uid)
        environment = self.context.make_environment() if self.context.make_environment else None
        if not isinstance(environment, OpenSpielGames):
            raise ConfigError(
                "bad-workflow",
                "Workflow 'open_spiel' needs the environment 'open_spiel'.",
                "Remove the key rllm.workflow.name.",
            )
        table = self._open(environment.params, task["seed"], uid)
        trained = {seat: table.conversations[seat].trajectory for seat in sorted(set(table.params.seats))}
        try:
            await self._play_game(table, self.episode)
        except Exception as error:
            # The engine's errors are raised. They are not the game's.
            if not _is_of_game(error):
                raise
            _set_failure(self.episode, trained, error)
        else:
            self.episode.is_correct = fmean(_reward(each) for each in trained.values()) > 0
        finally:
            # A seat without a turn has nothing to train.
            self.episode.trajectories = [each for each in trained.values() if each.steps]
            self.episode.metrics.update(_count(table, trained))
            for conversation in table.conversations.values():
                await conversation.close()
        return self.episode

    def _open(self, params: OpenSpielParams, seed: int, uid: str) -> _Table:
        game = load_game(params)
        seats = range(game.num_players())
        policy_seats = seats if params.opponent == "policy" else sorted(set(params.seats))
        others = [seat for seat in seats if seat not in params.seats] if params.opponent == "mcts" else []
        return _Table(
            params=params,
            game=game,
            state=game.new_initial_state(),
            chance=random.Random(derive_seed(seed, "chance")),
            moves=random.Random(derive_seed(seed, "moves")),
            bots={seat: make_bot(game, params, derive_seed(seed, "bot", seat) % 2**31) for seat in others},
            conversations={seat: self._converse(seat, uid) for seat in policy_seats},
            counts=Counter(),
        )

    def _converse(self, seat: int, uid: str) -> Conversation:
        trajectory = Trajectory(f"player_{seat}", uid=f"{uid}/player_{seat}")
        sampling = replace(self.context.sampling, seed=derive_seed(self.context.sampling.seed, "player", seat))
        context = replace(self.context, sampling=sampling)
        return Conversation(context, trajectory, session=f"{trajectory.uid}#{sampling.seed}")

    async def _play_game(self, table: _Table, episode: Episode) -> None:
        """Play until the end, and set the rewards of all conversations."""
        state = table.state
        episode.termination_reason = TerminationReason.ENV_DONE
        try:
            while not state.is_terminal():
                action = draw_chance(state, table.chance) if state.is_chance_node() else await self._move(table)
                state.apply_action(action)
            returns = state.returns()
        except ForfeitError as forfeit:
            returns = share_forfeit(table.game, state, forfeit.seat)
        except UnfinishedError as end:
            episode.termination_reason = end.reason
            returns = state.returns()
        except asyncio.CancelledError:
            _set_rewards(table, state.returns())  # After a timeout, the turns so far are trained on.
            raise
        _set_rewards(table, returns)

    async def _move(self, table: _Table) -> int:
        state, seat = table.state, table.state.current_player()
        table.counts["turns"] += 1
        if seat in table.conversations:
            return await self._ask(table, seat)
        if seat in table.bots:
            action: int = table.bots[seat].step(state)
            return action
        legal: list[int] = state.legal_actions()
        return table.moves.choice(legal)

    async def _ask(self, table: _Table, seat: int) -> int:
        """Return the action that the model chooses for `seat`."""
        conversation, names = table.conversations[seat], name_actions(table.state, seat)
        request = f"Legal actions: {', '.join(names)}\nReply with one of them."
        message = f"{write_view(table.state, seat, table.params)}\n{request}"
        if not conversation.trajectory.steps:
            rules = f"You play {table.params.game} as player {seat} of {table.game.num_players()}, counted from 0."
            message = f"{table.params.prompt or rules}\n{message}"
        for _ in range(1 + table.params.retries):
            if len(conversation.trajectory.steps) >= self.context.max_steps:
                raise UnfinishedError(TerminationReason.MAX_TURNS_EXCEEDED)
            conversation.add_observation(message)
            try:
                step = await conversation.generate()
            except PromptTooLongError:
                raise UnfinishedError(TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED) from None
            step.reward = 0.0
            action = read_action(conversation.parse_step(step).content, names)
            if action is not None:
                return action
            table.counts["invalid"] += 1
            message = f"That is not a legal action. {request}"
        if table.params.invalid == "forfeit":
            raise ForfeitError(seat)
        return table.moves.choice(list(names.values()))


def _is_of_game(error: BaseException) -> bool:
    """Return True if OpenSpiel raised the error."""
    import pyspiel

    return isinstance(error, pyspiel.SpielError)


def _set_failure(episode: Episode, trained: Mapping[int, Trajectory], error: Exception) -> None:
    cause = f"{type(error).__name__}: {error}"
    if not any(each.steps for each in trained.values()):
        raise RolloutError("environment-failed", f"The game failed: {cause}.") from error
    for trajectory in trained.values():
        trajectory.reward = None
        trajectory.info[REWARD_ERROR] = cause
        for step in trajectory.steps:
            step.reward = None


def _set_rewards(table: _Table, returns: Sequence[float]) -> None:
    """Set the reward of each conversation. Its last step gets it."""
    for seat, conversation in table.conversations.items():
        trajectory = conversation.trajectory
        trajectory.reward = float(returns[seat])
        if trajectory.steps:
            trajectory.steps[-1].reward = trajectory.reward


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None
    return trajectory.reward


def _count(table: _Table, trained: Mapping[int, Trajectory]) -> dict[str, float]:
    others = [each.trajectory for seat, each in table.conversations.items() if seat not in trained]
    tokens = sum(len(step.response_ids) for each in others for step in each.steps)
    return {
        "turns": float(table.counts["turns"]),
        "invalid": float(table.counts["invalid"]),
        **({UNTRAINED: float(tokens)} if others else {}),
    }
