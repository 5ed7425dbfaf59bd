"""What the built files carry: the licence, and bounds of everything they ask for."""

from __future__ import annotations

import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from .environments import DISTRIBUTIONS, ROOT, metadata_of, requirements_of

LICENCE = (ROOT / "LICENSE").read_bytes()
UPPER = {"<", "<=", "==", "~="}


def _built(dist: Path, folder: Path, pattern: str) -> Path:
    (file,) = dist.glob(f"{folder.name}-{pattern}")
    return file


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_wheel_and_sdist_carry_the_licence(dist: Path, folder: Path) -> None:
    with ZipFile(_built(dist, folder, "*.whl")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert wheel.read(name) == LICENCE
    with tarfile.open(_built(dist, folder, "*.tar.gz")) as sdist:
        (member,) = (
            member for member in sdist.getmembers() if member.name.count("/") == 1 and "LICENSE" in member.name
        )
        kept = sdist.extractfile(member)
        assert kept is not None
        assert kept.read() == LICENCE
    assert metadata_of(_built(dist, folder, "*.whl")).get_all("License-File") == ["LICENSE"]


@pytest.mark.parametrize(
    "folder", [each for each in DISTRIBUTIONS if each.name != "rllm_example"], ids=lambda f: f.name
)
def test_every_requirement_has_both_bounds(dist: Path, folder: Path) -> None:
    wheel = _built(dist, folder, "*.whl")
    extras = metadata_of(wheel).get_all("Provides-Extra", [])

    unbounded = [
        str(each)
        for each in requirements_of(wheel, extras)
        if not {spec.operator for spec in each.specifier} & UPPER
        or all(spec.operator in {"<", "<=", "!="} for spec in each.specifier)
    ]

    assert unbounded == ["packaging>=23"] * (folder.name == "rllm_core")


@pytest.mark.parametrize("folder", [each for each in DISTRIBUTIONS if each.name != "rllm_core"], ids=lambda f: f.name)
def test_the_core_is_asked_for_by_its_minor_release(dist: Path, folder: Path) -> None:
    needed = [
        str(each.specifier) for each in requirements_of(_built(dist, folder, "*.whl")) if each.name == "rllm-core"
    ]

    assert needed == ["<0.2,>=0.1"]
