"""Says at once that one of Ray's own processes has ended.

The error of whoever waits may never come: Ray's library ends this program, without a word and without Python, when it
next writes to the object store of a raylet that is gone.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

LOOK_SECONDS = 0.02


class DaemonWatch:
    """Looks from a thread, from its making to `stop`."""

    def __init__(self, find_end: Callable[[], str | None], tell: Callable[[str], None]) -> None:
        """Begin to look.

        Args:
            find_end: says what has ended, as `processes.dead_daemon` does.
            tell: gets that, once.
        """
        self._find_end = find_end
        self._tell = tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="rllm-verl-daemons", daemon=True)
        self._thread.start()
        # Before Ray's own, which was registered earlier and ends its processes.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Look no more: Ray is about to be ended."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if (gone := self._find_end()) is not None:
                self._tell(gone)
                return
