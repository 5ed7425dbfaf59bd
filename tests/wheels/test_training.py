"""Two training steps from wheels without our constraints, at the newest and the lowest versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .environments import Environment

SHORT = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "rllm.trainer.val_before_train=false")
RECOMPUTED = "rllm.algorithm.rollout_correction.bypass_mode=false"
"""The trainer computes old log-probs, so that the test can compare them with the sampler's."""
DIFFERENCE = "actor/rollout_logprob_difference"
BACKENDS = {"local": (), "tinker": ("rllm/backend=tinker", "tinker_base_url=local")}
WITH_OLDEST = pytest.mark.xdist_group("oldest")
"""One test process makes the environment, and runs all tests that use it."""


@pytest.fixture(
    params=[
        pytest.param("latest", marks=[pytest.mark.smoke, pytest.mark.xdist_group("latest")]),
        pytest.param("oldest", marks=WITH_OLDEST),
    ]
)
def installed(request: pytest.FixtureRequest) -> Environment:
    environment: Environment = request.getfixturevalue(request.param)
    return environment


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_steps_train_and_sampler_agrees_with_trainer(installed: Environment, backend: str, tmp_path: Path) -> None:
    own = f"training.default_local_dir={tmp_path / 'kept'}"
    words = [*BACKENDS[backend], *SHORT, RECOMPUTED, *([own] if backend == "tinker" else [])]

    done = installed.run(["rllm", "train", "guess", *words], tmp_path)

    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/rllm-training/guess-1/metrics.jsonl").read_text().splitlines()
    differences = [line[DIFFERENCE] for line in map(json.loads, lines) if DIFFERENCE in line]
    assert len(differences) == 2
    assert max(differences) < 1e-4, differences


def test_own_parquet_file_trains(installed: Environment, tmp_path: Path) -> None:
    write = "import pyarrow as a, pyarrow.parquet as p; rows = [dict(question=str(n), answer=str(n)) for n in range(4)]"
    write += "; p.write_table(a.Table.from_pylist(rows), 'train.parquet')"
    assert installed.run(["python", "-c", write], tmp_path).returncode == 0

    words = ("--data", "train.parquet", "--reward", "exact", *SHORT, "data.max_response_length=2")
    done = installed.run(["rllm", "train", "question", *words], tmp_path)

    assert done.returncode == 0, done.stderr


@WITH_OLDEST
@pytest.mark.parametrize(
    "name", ["gymnasium:FrozenLake-v1", "open_spiel:kuhn_poker", "reasoning_gym:chain_sum", "textarena:Secretary-v0"]
)
def test_an_environment_of_others_trains_by_name(oldest: Environment, name: str, tmp_path: Path) -> None:
    """`test_alone.py` runs the example of rllm-envs at the newest versions."""
    done = oldest.run(["rllm", "train", name, *SHORT, "data.max_response_length=4"], tmp_path)

    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("runs/rllm-training/*-1/metrics.jsonl"))) == 1


def test_nothing_is_read_from_the_sources(installed: Environment, tmp_path: Path) -> None:
    modules = "rllm, rllm_core, rllm_data, rllm_envs, rllm_local, rllm_record, rllm_tinker, rllm_view"
    code = f"import {modules}; print(*(module.__file__ for module in ({modules})))"

    places = installed.run(["python", "-c", code], tmp_path).stdout.split()

    assert len(places) == len(modules.split(", "))
    assert all(Path(place).is_relative_to(installed.directory) for place in places), places


def test_the_doctor_finds_nothing_wrong(installed: Environment, tmp_path: Path) -> None:
    done = installed.run(["rllm", "plugins", "doctor"], tmp_path)

    assert done.returncode == 0, done.stdout
    assert "error:" not in done.stdout and "warning:" not in done.stdout, done.stdout
    assert done.stdout.strip().endswith("all work.")


@WITH_OLDEST
def test_the_lowest_versions_are_those_we_name(oldest: Environment, tmp_path: Path) -> None:
    assert oldest.version_of("transformers", tmp_path) == "5.6.1"
    assert oldest.version_of("pydantic", tmp_path) == "2.10.1"
