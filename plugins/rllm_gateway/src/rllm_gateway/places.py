"""Where stores of calls are: in the folder of a run, or one for all gateways that outlive runs."""

from __future__ import annotations

from pathlib import Path

from rllm.config import FILE_NAME as CONFIG, read_config
from rllm_core.errors import ConfigError

SHARED = "~/.rllm/traces.db"
"""The store of `rllm gateway serve`, and of commands without a run folder, such as `rllm eval`."""
OF_RUN = Path("gateway", "traces.db")
"""In a run folder."""
RUNS = Path("runs")
SHOWN = 5


def store_path(configured: str | None, run_directory: Path | None) -> Path:
    """The store of a run whose ``rllm.sdk.store.path`` is `configured`."""
    if configured is None and run_directory is not None:
        return run_directory / OF_RUN
    return Path(configured or SHARED).expanduser()


def named_store(named: str | None, run: str | None) -> Path:
    """The store that a command reads.

    Args:
        named: a store or a run folder; None: that of `run`, where ``runs/`` has one, else the shared one.
        run: name of a run.

    Raises:
        ConfigError: there is none.
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
        f"Give --store the folder of a run: {', '.join(found[:SHOWN])}{', …' * (len(found) > SHOWN)}."
        if found
        else "Give --store the folder of a run, or the file that `rllm gateway serve` prints as `store:`.",
    )


def _store_in(directory: Path) -> Path:
    """The store of the run in `directory`."""
    sdk = read_config(directory).get("rllm", {}).get("sdk", {}) if (directory / CONFIG).is_file() else {}
    if sdk.get("proxy", {}).get("mode") == "external":
        # The gateway has the store, and its run does not know which.
        return store_path(None, None)
    return store_path(sdk.get("store", {}).get("path"), directory)
