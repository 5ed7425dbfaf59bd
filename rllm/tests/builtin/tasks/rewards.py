"""A reward function as users write them, for the contract."""


def score(rollout):
    return float(rollout.response.content.strip() == str(rollout.data.get("answer")))
