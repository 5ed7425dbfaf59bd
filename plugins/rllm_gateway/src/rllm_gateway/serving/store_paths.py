"""Paths of stores of model calls: one in each run directory, and one for all gateways that outlive runs."""

from __future__ import annotations

from pathlib import Path

from rllm.config import FILE_NAME as CONFIG, read_config
from rllm_core.errors import ConfigError

SHARED = "~/.rllm/traces.db"
"""The store of `rllm gateway serve`, and of commands without a run directory, such as `rllm eval`."""
OF_RUN = Path("gateway", "traces.db")
"""Path of the store in a run directory."""
RUNS = Path("runs")
SHOWN = 5


def store_path(configured: str | None, run_directory: Path | None) -> Path:
    """Return the path of a run's store, if `configured` is its ``rllm.sdk.store.path``."""
    if configured is None and run_directory is not None:
        return run_directory / OF_RUN
    return Path(configured or SHARED).expanduser()


def named_store(named: str | None, run: str | None = None) -> Path:
    """Return the path of the store that a command reads.

    Args:
        named: a store or a run directory. If it is None, the command reads the store of `run` if ``runs/`` contains
            that run, and the shared store otherwise.
        run: name of a run.

    Raises:
        ConfigError: the store does not exist.
    """
    if named is not None:
        path = Path(named).expanduser()
        path = _store_in(path) if path.is_dir() else path
    elif run is not None and (RUNS / run).is_dir():
        path = _store_in(RUNS / run)
    else:
        path = store_path(None, None)
    if path.exists():
        return path
    found = sorted(str(store.parents[len(OF_RUN.parts) - 1]) for store in RUNS.glob(f"*/*/{OF_RUN}"))
    raise ConfigError(
        "store-not-found",
        f"There is no store of calls at {path}.",
        f"Set --store to the directory of a run: {', '.join(found[:SHOWN])}{', …' * (len(found) > SHOWN)}."
        if found
        else "Set --store to the directory of a run, or to the file that `rllm gateway serve` prints as `store:`.",
    )


def _store_in(directory: Path) -> Path:
    """Return the path of the store of the run in `directory`."""
    sdk = read_config(directory).get("rllm", {}).get("sdk", {}) if (directory / CONFIG).is_file() else {}
    if sdk.get("proxy", {}).get("mode") == "external":
        # The gateway selects the store, and the run has no record of its path. Assume the default.
        return store_path(None, None)
    return store_path(sdk.get("store", {}).get("path"), directory)
