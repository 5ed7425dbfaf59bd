"""Check that the Hugging Face hub answers. The hub's client retries for most of a minute before it gives up."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

DEADLINE = 8.0
"""Seconds until the hub counts as out of reach."""
REMEMBERED = 60.0
"""Seconds in which it is not asked again: a run opens tokenizer and model one after the other."""
_unanswered: dict[str, float] = {}
"""When the hub did not answer about a name, by `time.monotonic`."""


def only_cached(source: Path | str) -> bool:
    """True if a model can only come from the hub's cache: it is a hub id, and the hub does not answer.

    Pass the result to `from_pretrained` of transformers as `local_files_only`.

    Args:
        source: a directory, or a hub id.
    """
    name = str(source)
    if Path(source).is_dir():
        return False
    if time.monotonic() - _unanswered.get(name, -math.inf) < REMEMBERED:
        return True
    if _answers(name):
        return False
    _unanswered[name] = time.monotonic()
    return True


def _answers(name: str) -> bool:
    # Imported before the thread starts: a second import of a module that is still being imported fails.
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def ask() -> None:
        try:
            HfApi().model_info(name, timeout=DEADLINE)
        except (HfHubHTTPError, HFValidationError):
            answered.set()  # transformers explains what is wrong with the name
        except Exception:  # noqa: BLE001  (of requests or httpx, by the version of the client)
            return
        else:
            answered.set()

    # A look-up of a host name has no deadline that Python could set, so the thread may outlive this call.
    asking = threading.Thread(target=ask, name="rllm-hub", daemon=True)
    asking.start()
    asking.join(DEADLINE)
    return answered.is_set()
