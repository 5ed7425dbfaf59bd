"""Sessions of a deployed agent become training data: served, stored, exported, rescored, trained on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_printed
from numpy.typing import NDArray

from rllm.environments.guess import Guess
from rllm.environments.options import GuessParams
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError
from rllm_gateway.calls import CallReader
from rllm_gateway.client import deployed_session, get_chat_client
from rllm_record.steps import StepFiles

pytestmark = pytest.mark.usefixtures("with_view")

NUMBERS = (3, 7, 11)
SERVE = ("gateway", "serve", "guess", "--model", "tiny", "--port", "0", "--announce", "at.json")
PLACES = ("--store", "calls.db", "--token-file", "token")
QUIET = ("rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false", "--overwrite")


def play(number: int, where: dict[str, str]) -> None:
    """An agent that nobody of ours has started plays a game."""
    game = Guess(GuessParams(prompt="guess"))
    with deployed_session({"number": number}, **where) as session, get_chat_client() as client:
        total = 0.0
        messages: list[Any] = [{"role": "user", "content": game.reset({"number": number})}]
        while True:
            words = client.chat.completions.create(model="any", messages=messages).choices[0].message.content
            outcome = game.step(words)
            total += outcome.reward
            if outcome.done:
                break
            messages += [{"role": "assistant", "content": words}, {"role": "user", "content": outcome.observation}]
        session.reward(total)


@pytest.fixture
def served(start_forked_rllm: Callable[..., Any], tmp_path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """A gateway that serves the tiny model, and where its sessions are opened."""
    process = start_forked_rllm(*SERVE, *PLACES)
    while not (tmp_path / "at.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    url = json.loads((tmp_path / "at.json").read_text())["url"]
    yield process, {"url": url, "token": (tmp_path / "token").read_text().strip()}


@pytest.fixture
def export(
    served: tuple[Any, dict[str, str]], rllm_here: Callable[..., Any], tmp_path: Path
) -> Callable[[int], list[Episode]]:
    """Play each number's game so many times, and export the games as episodes into the folder `sessions`."""

    def export(rollouts: int) -> list[Episode]:
        process, where = served
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: play(number, where), [*NUMBERS] * rollouts))
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert where["token"] not in printed
        done = rllm_here("gateway", "episodes", "--store", "calls.db", "sessions")
        expected = f"{len(NUMBERS) * rollouts} attempts at {len(NUMBERS)} tasks in sessions, 0 without a reward"
        assert done.stdout.strip() == expected
        return [each.episode for each in StepFiles(tmp_path / "sessions").episodes(0)]

    return export


def logprobs_under(model: Path, episodes: list[Episode]) -> NDArray[np.float64]:
    """(n,) log-probs of what was sampled in each episode."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model)
    sums = []
    for buffer in (episode.trajectories[0].tokens for episode in episodes):
        ids = torch.tensor(buffer.ids[None], dtype=torch.long)
        with torch.no_grad():
            rows = network(ids).logits[0, :-1].log_softmax(-1)
        chosen = rows.gather(1, ids[0, 1:, None])[:, 0].numpy()
        sums.append(chosen[buffer.sampled[1:]].sum())
    return np.array(sums, np.float64)


def stored_logprobs(episodes: list[Episode]) -> NDArray[np.float64]:
    buffers = [episode.trajectories[0].tokens for episode in episodes]
    return np.array([buffer.logprobs[buffer.sampled].sum() for buffer in buffers], np.float64)


def test_games_of_a_deployed_agent_are_trained_on(
    export: Callable[[int], list[Episode]], rllm_here: Callable[..., Any], tmp_path: Path
) -> None:
    exported = export(64)
    good = [episode for episode in exported if (episode.trajectories[0].reward or 0) > 0]
    assert 0 < len(good) < len(exported)

    rescored = rllm_here("rescore", "sessions", "--estimator", "grpo", "--estimator", "rloo", "--json")
    assert sum(step["episodes"] for step in json.loads(rescored.stdout)["steps"]) == len(exported)

    train = ("train", "guess", "--stored", "sessions", "rllm.algorithm.entropy.coeff=0", "rllm.trainer.total_batches=8")
    done = rllm_here(*train, *QUIET)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "rllm-training" / "default"
    first, *_, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines()[:8])
    assert first["batch/episodes"] == len(exported)
    # The model that sampled is the one that training starts with, and moves away from.
    assert first["actor/rollout_logprob_difference"] < 1e-5
    assert last["actor/rollout_logprob_difference"] > 1e-2

    gain = logprobs_under(run / "checkpoints" / "latest" / "backend" / "model", exported) - stored_logprobs(exported)
    is_good = np.array([episode in good for episode in exported])
    assert gain[is_good].mean() > 0.5
    assert gain[is_good].mean() > gain[~is_good].mean() + 0.5


def test_a_model_with_another_vocabulary_is_refused(
    export: Callable[[int], list[Episode]], rllm_here: Callable[..., Any], tmp_path: Path
) -> None:
    export(2)
    from rllm_local.tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(tmp_path / "other")
    build_model(len(tokenizer), seed=0).save_pretrained(tmp_path / "other")
    done = rllm_here("train", "guess", "--stored", "sessions", "--model", "other", *QUIET)
    assert done.returncode == ConfigError.exit_code
    check_printed(done.stderr, "tokenizer-mismatch", "tokenizer")
    hot = rllm_here("train", "guess", "--stored", "sessions", "sampling.train.temperature=0.5", *QUIET)
    check_printed(hot.stderr, "temperature-mismatch", "temperature 1", "sampling.train.temperature is 0.5")


def test_what_is_open_when_the_server_is_killed_can_be_exported(
    served: tuple[Any, dict[str, str]], rllm_here: Callable[..., Any], tmp_path: Path
) -> None:
    from rllm_gateway.client import open_session

    process, where = served
    session = open_session({"number": 3}, **where)  # type: ignore[arg-type]  # a URL and a token
    from openai import OpenAI

    with OpenAI(base_url=session.openai_url, api_key=session.key) as client:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "guess"}])
    session.reward(1.0)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    # The gateway itself hears that the model has gone, and ends what is open.
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with CallReader.open(tmp_path / "calls.db") as reader:
            if all(each.end is not None for each in reader.sessions()):
                break
        time.sleep(0.05)
    done = rllm_here("gateway", "episodes", "--store", "calls.db", "--with-open", "sessions")
    assert done.stdout.startswith("1 attempt at 1 task")
