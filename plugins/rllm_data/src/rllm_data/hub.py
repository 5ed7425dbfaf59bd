"""Check with a deadline that the hub has a dataset, because the hub's own client retries for over half a minute."""

from __future__ import annotations

import threading

from rllm_core.errors import ConfigError
from rllm_core.notices import one_line

DEADLINE = 8.0
"""Seconds until the hub counts as out of reach."""


def ask_hub(name: str) -> None:
    """Return where the hub has the data set `name`, or where the environment says not to ask (``HF_HUB_OFFLINE``).

    Raises:
        ConfigError: the hub has none of that name, refuses it, or does not answer in time.
    """
    import datasets

    if datasets.config.HF_HUB_OFFLINE:
        return
    failed: list[Exception] = []

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            HfApi().dataset_info(name, timeout=DEADLINE)
        except Exception as error:  # noqa: BLE001  (told below, in the thread that asks)
            failed.append(error)

    # A look-up of a name has no deadline that Python could set, so that it may outlive this call.
    asking = threading.Thread(target=ask, name="rllm-data-hub", daemon=True)
    asking.start()
    asking.join(DEADLINE)
    if asking.is_alive():
        raise _out_of_reach(name, f"no answer in {DEADLINE:.0f} s")
    if failed:
        raise _explained(name, failed[0]) from failed[0]


def _explained(name: str, error: Exception) -> ConfigError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return ConfigError(
            "gated-dataset",
            f"The data set {name!r} is gated: the hub gives it to accounts that have accepted its terms.",
            "Accept them on its page, and run `hf auth login`.",
        )
    if isinstance(error, RepositoryNotFoundError):
        return ConfigError(
            "dataset-not-found",
            f"There is no file or directory {name!r} here, and no such dataset on the hub.",
            "Set the option path to a file, a directory or OWNER/NAME. For a private dataset, run: hf auth login",
        )
    return _out_of_reach(name, one_line(f"{type(error).__name__}: {error}", 160))


def _out_of_reach(name: str, reason: str) -> ConfigError:
    return ConfigError(
        "service-unreachable",
        f"There is no file or directory {name!r} here, and the hub cannot be reached: {reason}.",
        "Set the option path to a local file, or check the network. Set HF_HUB_OFFLINE=1 to read downloaded data.",
    )
