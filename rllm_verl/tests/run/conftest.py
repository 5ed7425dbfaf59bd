"""Ray for tests of this directory: one small cluster for all of them, with logical GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["VERL_PLATFORM"] = "cpu"
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    import ray

    ray.init(
        num_cpus=8,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=200 * 2**20,
        runtime_env={
            "env_vars": {
                "VERL_PLATFORM": "cpu",
                "OMP_NUM_THREADS": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            }
        },
    )
    yield
    ray.shutdown()
