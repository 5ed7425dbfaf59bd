"""``python -m rllm`` does what ``rllm`` does."""

from __future__ import annotations

import sys

from rllm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
