"""Contents of built files: the license, the whole package and nothing else, bounds of requirements."""

from __future__ import annotations

import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from workspace import ROOT, Distribution, distributions

from .environments import metadata_of, requirements_of

LICENCE = (ROOT / "LICENSE").read_bytes()
UPPER = {"<", "<=", "==", "~="}
NAMESPACES = {"rllm": {"hydra_plugins"}}
"""Distribution -> files that its wheel adds to other packages."""

SKILLS = ".agents"
"""A directory in which coding agents find instructions."""

every = pytest.mark.parametrize("distribution", distributions(), ids=lambda each: each.name)


def _built(dist: Path, distribution: Distribution, pattern: str) -> Path:
    (file,) = dist.glob(f"{distribution.file_name}-{pattern}")
    return file


def _files(distribution: Distribution) -> set[str]:
    """Return the paths below ``src/``, without caches of Python and tools."""
    source = distribution.directory / "src"
    return {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file()
        and not any(part == "__pycache__" or (part.startswith(".") and part != SKILLS) for part in path.parts)
    }


@every
def test_wheel_and_sdist_have_version_of_sources(dist: Path, distribution: Distribution) -> None:
    assert metadata_of(_built(dist, distribution, "*.whl"))["Version"] == distribution.version
    assert _built(dist, distribution, "*.tar.gz").name == f"{distribution.file_name}-{distribution.version}.tar.gz"


@every
def test_wheel_and_sdist_contain_the_license(dist: Path, distribution: Distribution) -> None:
    with ZipFile(_built(dist, distribution, "*.whl")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert wheel.read(name) == LICENCE
    with tarfile.open(_built(dist, distribution, "*.tar.gz")) as sdist:
        (member,) = (
            member for member in sdist.getmembers() if member.name.count("/") == 1 and "LICENSE" in member.name
        )
        kept = sdist.extractfile(member)
        assert kept is not None
        assert kept.read() == LICENCE
    assert metadata_of(_built(dist, distribution, "*.whl")).get_all("License-File") == ["LICENSE"]


@every
def test_wheel_has_exactly_the_files_of_its_package(dist: Path, distribution: Distribution) -> None:
    with ZipFile(_built(dist, distribution, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == _files(distribution)
    allowed = {distribution.file_name} | NAMESPACES.get(distribution.name, set())
    assert {name.partition("/")[0] for name in names} <= allowed


@every
def test_the_wheel_has_no_tests(dist: Path, distribution: Distribution) -> None:
    with ZipFile(_built(dist, distribution, "*.whl")) as wheel:
        names = [Path(name).name for name in wheel.namelist()]
    assert [
        name for name in names if name == "conftest.py" or (name.startswith("test_") and name.endswith(".py"))
    ] == []


@every
def test_the_wheel_has_the_page_and_types(dist: Path, distribution: Distribution) -> None:
    wheel = _built(dist, distribution, "*.whl")
    assert metadata_of(wheel).get_payload().strip() == distribution.readme.strip()
    with ZipFile(wheel) as archive:
        marked = {name for name in archive.namelist() if name.endswith("/py.typed")}
    assert marked == {f"{package.name}/py.typed" for package in distribution.packages}


@every
def test_every_requirement_has_both_bounds(dist: Path, distribution: Distribution) -> None:
    wheel = _built(dist, distribution, "*.whl")
    extras = metadata_of(wheel).get_all("Provides-Extra", [])

    unbounded = [
        str(each)
        for each in requirements_of(wheel, extras)
        if not {spec.operator for spec in each.specifier} & UPPER
        or all(spec.operator in {"<", "<=", "!="} for spec in each.specifier)
    ]

    assert unbounded == ["packaging>=23"] * (distribution.name == "rllm-core")
