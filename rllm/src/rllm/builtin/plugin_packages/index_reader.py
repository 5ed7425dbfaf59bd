"""Metadata of the packages in an index, without installing them.

An index is an address as for pip's ``--index-url`` (PEP 503 and PEP 691), or a directory with wheels. Of each package,
only the newest wheel is read. If the index has its metadata in a file (PEP 658), the wheel is not downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from email.parser import HeaderParser
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zipfile import BadZipFile, ZipFile

import httpx
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from rllm_core.errors import RllmError
from rllm_core.notices import warn_once
from rllm_core.plugins.discovery import normalize

PART_OF_NAME = "rllm"
"""Packages of an index whose names do not contain this are not read."""
JSON = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
SECONDS = 30.0
"""Maximum time without data from the index."""
CONNECTIONS = 8
MAX_WHEEL = 20 * 2**20
"""Maximum size in bytes of a wheel that is downloaded for its metadata."""


class WheelFile(NamedTuple):
    """A wheel in an index."""

    version: Version
    url: str
    has_metadata: bool
    """True if the index has a second file with the wheel's metadata."""


def read_directory(directory: Path, names: Sequence[str]) -> list[Message]:
    """Return the metadata of the newest wheel of each package in a directory. `names` as for `read_index`."""
    newest: dict[str, tuple[tuple[bool, Version], Path]] = {}
    wanted = {normalize(name) for name in names}
    for path in sorted(directory.glob("*.whl")):
        parsed = _parse_name(path.name)
        if parsed and (not wanted or parsed[0] in wanted):
            name, version = parsed
            newest[name] = max(newest.get(name, (_rank(version), path)), (_rank(version), path))
    return [_metadata_of_wheel(path.open("rb"), str(path)) for _, path in newest.values()]


def read_index(address: str, names: Sequence[str]) -> list[Message]:
    """Return the metadata of packages in an index.

    Args:
        address: address of the index.
        names: the packages to read. Empty for all packages whose name contains `PART_OF_NAME`.

    Raises:
        RllmError: the index or a package of `names` cannot be read. Without `names`, such packages are printed.
    """
    with httpx.Client(headers={"Accept": ACCEPT}, timeout=SECONDS, follow_redirects=True) as client:
        index = _Index(client, address.rstrip("/"))

        def read(name: str) -> Message | None:
            try:
                return index.read_package(name)
            except RllmError as error:
                if names:
                    raise
                warn_once(error.message)
                return None

        with ThreadPoolExecutor(CONNECTIONS) as threads:
            found = threads.map(read, names or list(index.list_names()))
            return [metadata for metadata in found if metadata is not None]


class _Index:
    def __init__(self, client: httpx.Client, address: str) -> None:
        self._client = client
        self._address = address

    def list_names(self) -> Iterator[str]:
        response = self._get(f"{self._address}/")
        if _is_json(response):
            listed = [str(project["name"]) for project in response.json()["projects"]]
        else:
            listed = [text for text, _ in _read_links(response.text)]
        yield from (name for name in listed if PART_OF_NAME in name.lower())

    def read_package(self, name: str) -> Message | None:
        """Return the metadata of a package's newest wheel. None if it has no wheel that may be read."""
        response = self._get(f"{self._address}/{normalize(name)}/")
        wheels = list(_wheels_of_json(response) if _is_json(response) else _wheels_of_html(response))
        if not wheels:
            return None
        newest = max(wheels, key=lambda wheel: _rank(wheel.version))
        if newest.has_metadata:
            return HeaderParser().parsestr(self._get(f"{newest.url}.metadata").text)
        content = self._get(newest.url).content
        return _metadata_of_wheel(BytesIO(content), newest.url)

    def _get(self, url: str) -> httpx.Response:
        try:
            with self._client.stream("GET", url) as response:
                response.raise_for_status()
                if url.endswith(".whl") and int(response.headers.get("Content-Length", 0)) > MAX_WHEEL:
                    raise _unreadable(url, f"it has more than {MAX_WHEEL // 2**20} MiB, and the index has no metadata")
                response.read()
                return response
        except httpx.HTTPStatusError as error:
            raise _unreadable(url, f"its server answers {error.response.status_code}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unreadable(url, str(error) or type(error).__name__) from error


def without_password(address: str) -> str:
    """Return an address without its user name and password, for display and storage."""
    return re.sub(r"//[^/@]*@", "//", address)


def _unreadable(url: str, reason: str) -> RllmError:
    """Return the error for a file of an index."""
    return RllmError(
        "index-not-readable",
        f"{without_password(url)} cannot be read: {reason}.",
        "Give the address as for `pip install --index-url`, or a directory with wheels.",
    )


def _is_json(response: httpx.Response) -> bool:
    return "json" in response.headers.get("Content-Type", "")


def _wheels_of_json(response: httpx.Response) -> Iterator[WheelFile]:
    files: list[dict[str, Any]] = response.json()["files"]
    for file in files:
        if (parsed := _parse_name(file["filename"])) and not file.get("yanked"):
            has_metadata = bool(file.get("core-metadata") or file.get("dist-info-metadata"))
            yield WheelFile(parsed[1], str(response.url.join(file["url"])), has_metadata)


def _wheels_of_html(response: httpx.Response) -> Iterator[WheelFile]:
    for text, attributes in _read_links(response.text):
        if (parsed := _parse_name(text)) and "data-yanked" not in attributes:
            url = str(response.url.join(attributes["href"] or "")).partition("#")[0]
            has_metadata = "data-core-metadata" in attributes or "data-dist-info-metadata" in attributes
            yield WheelFile(parsed[1], url, has_metadata)


def _parse_name(filename: str) -> tuple[str, Version] | None:
    """Return the package and version of a wheel's name. None for other files."""
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    return name, version


def _rank(version: Version) -> tuple[bool, Version]:
    """Return the order of versions: a release is newer than all pre-releases."""
    return not version.is_prerelease, version


def _metadata_of_wheel(file: BinaryIO, place: str) -> Message:
    try:
        with file, ZipFile(file) as archive:
            name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            return HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    except (BadZipFile, StopIteration) as error:
        raise _unreadable(place, "it is not a wheel") from error


class _LinkParser(HTMLParser):
    """Collects the links of a page: their text and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, dict[str, str | None]]] = []
        self._is_link = False

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(("", dict(attrs)))
            self._is_link = True

    def handle_endtag(self, tag: str) -> None:
        self._is_link = self._is_link and tag != "a"

    def handle_data(self, data: str) -> None:
        if self._is_link:
            text, attributes = self.links[-1]
            self.links[-1] = (text + data.strip(), attributes)


def _read_links(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _LinkParser()
    parser.feed(page)
    return parser.links
