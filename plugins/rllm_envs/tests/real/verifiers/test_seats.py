"""Which seats are trained, and who answers the others."""

from __future__ import annotations

from .bridge import episodes
from .script import endpoint, say_to_prompt


def test_only_the_chosen_seats_are_trained() -> None:
    duels, _ = episodes(say_to_prompt, id="vf_duel", trained=["solver"])
    assert [[each.name for each in episode.trajectories] for episode in duels] == [["solver"], ["solver"]]
    first = duels[0].metrics
    assert first["gateway/excluded_tokens/untrained_seat"] == len("2 + 2$")
    assert first["gateway/trained_tokens"] == len("4$")


def test_seat_with_own_endpoint_never_calls_the_policy() -> None:
    with endpoint() as url:
        writer = {"model": "other", "client": {"type": "eval", "base_url": url, "api_key_var": "NO_KEY"}}
        duels, engine = episodes(say_to_prompt, id="vf_duel", config={"writer": writer})
    assert [[each.name for each in episode.trajectories] for episode in duels] == [["solver"], ["solver"]]
    prompts = ["".join(map(chr, prompt)) for prompt, _ in engine.calls]
    assert all("What is" in prompt for prompt in prompts)
    assert len(prompts) == 2
