"""Builds the sdist of every distribution, and its wheel from the sdist: ``build_distributions.py DIRECTORY``."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from workspace import distributions


def build(into: Path) -> None:
    """Build them into a directory. A missing directory is made."""
    for distribution in distributions():
        (sdist,) = SdistBuilder(str(distribution.directory)).build(directory=str(into))
        with TemporaryDirectory() as unpacked:
            with tarfile.open(sdist) as archive:
                archive.extractall(unpacked, filter="data")
            (source,) = Path(unpacked).iterdir()
            list(WheelBuilder(str(source)).build(directory=str(into)))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
