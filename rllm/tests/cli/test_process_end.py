"""A command's process ends without the last garbage collections of Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import duckdb  # Its objects would print warnings because they are not collected.
from rllm.cli.main import main

class Cycle:
    def __init__(self):
        self.cycle = self
        self.file = open("written", "w")
        self.file.write("all")

    def __del__(self):
        print("collected", flush=True)

code = main(["plugins", "list", "--no-such-option"])
Cycle()
sys.exit(code)
"""


def test_end_writes_files_and_skips_collections(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "leaked" not in done.stderr
    assert (tmp_path / "written").read_text() == "all"
