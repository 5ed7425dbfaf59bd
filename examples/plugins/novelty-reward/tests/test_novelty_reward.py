"""The contract of every reward, and the numbers of this one."""

from rllm_core.contracts import Rollout
from rllm_core.data.messages import Response
from rllm_plugin_kit import RewardContract

from novelty_reward.options import NoveltyRewardParams
from novelty_reward.reward import NoveltyReward


class TestNoveltyReward(RewardContract):
    name = "novelty-reward/novelty_reward"
    options = ({}, {"ignore_case": False})


def scores(params: NoveltyRewardParams, *responses: str) -> list[float | None]:
    """Return the rewards of rollouts of one task with these responses."""
    said = [Response(text=text, content=text) for text in responses]
    rollouts = [Rollout(data={}, messages=[], response=each, response_tokens=1) for each in said]
    return [score.value for score in NoveltyReward(params)(rollouts)]


def test_rare_responses_get_more_than_common_ones() -> None:
    assert scores(NoveltyRewardParams(), "4", " 4", "5", "Four", "four") == [0.75, 0.75, 1.0, 0.75, 0.75]
    assert scores(NoveltyRewardParams(ignore_case=False), "Four", "four") == [1.0, 1.0]
    assert scores(NoveltyRewardParams(), "4") == [0.0]
