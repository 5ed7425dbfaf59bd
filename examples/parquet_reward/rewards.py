"""The reward of a response. A function with verl's or TRL's parameters works as well."""


def score(rollout):
    """Return 1 for the right number, 0.1 for any number."""
    said = rollout.response.content.strip()
    correct = said == rollout.data["answer"]
    return {"value": 1.0 if correct else 0.1 * said.isdigit(), "correct": correct}
