"""A reward function as users write them, for the contract."""


def score(attempt):
    return float(attempt.reply.content.strip() == str(attempt.data.get("answer")))
