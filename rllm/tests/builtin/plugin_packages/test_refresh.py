"""`rllm plugins refresh` reads the metadata of packages in every form of an index, and runs none of their code."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from expecting import check_printed
from small_wheels import write_estimator_wheel, write_wheel

from rllm.builtin.plugin_packages.refresh import list_entries
from rllm.cli.main import main
from rllm_core.plugins.discovery import read_published_packages, read_refreshed_packages

Pages = dict[str, tuple[str, bytes]]
"""Path -> content type and content."""
IMPORTED = "raise RuntimeError('imported')"
SOURCE = "Project-URL: Homepage, https://example.org\nProject-URL: Source, https://example.org/source\n"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    directory = tmp_path / "wheels"
    for version in ("0.9", "0.10", "1.0rc1"):
        write_estimator_wheel(directory, "rllm-median", version, "median" if version == "0.10" else "old")
    write_wheel(directory, "rllm-games", "2.0", IMPORTED, keywords=["rllm-plugin", "rllm-odd:x"], metadata=SOURCE)
    write_wheel(directory, "rllm-unrelated", "1.0", IMPORTED, keywords=["games"])
    return directory


def _read_metadata(wheel: Path) -> bytes:
    with ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("METADATA")))


def _package(wheel: Path) -> str:
    return wheel.name.partition("-")[0].replace("_", "-")


def make_json_pages(wheels: Path) -> Pages:
    """Return the pages of an index with JSON and metadata files."""
    kind = "application/vnd.pypi.simple.v1+json"
    packages = {_package(wheel) for wheel in wheels.iterdir()}
    listing = {"projects": [{"name": name} for name in (*packages, "other")]}
    pages = {"/simple/": (kind, json.dumps(listing).encode())}
    for name in packages:
        files: list[dict[str, Any]] = [{"filename": f"{name}-9.tar.gz", "url": "x"}]
        for wheel in wheels.glob(f"{name.replace('-', '_')}-*"):
            files.append({"filename": wheel.name, "url": f"../../files/{wheel.name}", "core-metadata": {"sha256": "0"}})
            pages[f"/files/{wheel.name}.metadata"] = ("text/plain", _read_metadata(wheel))
        files.append({**files[-1], "filename": files[-1]["filename"].replace("-", "-99.", 1), "yanked": "broken"})
        pages[f"/simple/{name}/"] = (kind, json.dumps({"files": files}).encode())
    return pages


def make_html_pages(wheels: Path) -> Pages:
    """Return the pages of an index with HTML and without metadata files."""
    packages = {_package(wheel) for wheel in wheels.iterdir()}
    links = "".join(f"<a href='/simple/{name}/'>{name}</a>" for name in (*packages, "other"))
    pages = {"/simple/": ("text/html", f"<html><body>{links}</body></html>".encode())}
    for name in packages:
        found = list(wheels.glob(f"{name.replace('-', '_')}-*"))
        pages |= {f"/files/{wheel.name}": ("application/zip", wheel.read_bytes()) for wheel in found}
        links = "".join(f"<a href='/files/{wheel.name}#sha256=0'>\n {wheel.name}</a><br/>" for wheel in found)
        links += f"<a href='/files/none' data-yanked=''>{name.replace('-', '_')}-99-py3-none-any.whl</a>"
        pages[f"/simple/{name}/"] = ("text/html", links.encode())
    return pages


@contextmanager
def _serving(pages: Pages) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = pages.get(self.path, ("", b""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


def _check_index(options: str) -> None:
    read_refreshed_packages.cache_clear()
    found = read_published_packages()
    assert set(found) == {"rllm-median", "rllm-games"}
    assert found["rllm-median"].version == "0.10"
    assert found["rllm-median"].offers == {"estimator": {"median": "A plugin for tests."}}
    assert found["rllm-games"].repository == "https://example.org/source"
    assert {entry.options for entry in found.values()} == {options}


def test_directory_of_wheels_is_an_index(cache: Path, wheels: Path, capsys) -> None:
    assert main(["plugins", "refresh", str(wheels)]) == 0

    _check_index(f"--find-links {wheels}")
    printed = capsys.readouterr().out
    assert "Without keywords such as rllm-estimator:NAME: rllm-games.\n" in printed
    assert f"2 of 3 packages have the keyword rllm-plugin. Stored in {cache}.\n" in printed


def test_refreshed_entries_are_printed_as_json(cache: Path, wheels: Path, capsys) -> None:
    main(["plugins", "refresh", str(wheels), "rllm_median", "--json"])

    assert {name: entry["version"] for name, entry in json.loads(capsys.readouterr().out).items()} == {
        "rllm-median": "0.10"
    }


@pytest.mark.parametrize("make_pages", [make_json_pages, make_html_pages])
def test_every_form_of_an_index_is_read(cache: Path, wheels: Path, make_pages: Callable[[Path], Pages]) -> None:
    with _serving(make_pages(wheels)) as address:
        assert main(["plugins", "refresh", address.replace("//", "//me:secret@")]) == 0

    _check_index(f"--index-url {address}")


def test_named_packages_are_added_to_earlier_ones(cache: Path, wheels: Path) -> None:
    with _serving(make_json_pages(wheels)) as address:
        main(["plugins", "refresh", address, "rllm-median"])
        read_refreshed_packages.cache_clear()
        main(["plugins", "refresh", address, "rllm_games"])

    _check_index(f"--index-url {address}")


def test_unreadable_package_hides_no_other(cache: Path, wheels: Path, capsys) -> None:
    pages = make_json_pages(wheels)
    del pages["/simple/rllm-unrelated/"]
    with _serving(pages) as address:
        assert main(["plugins", "refresh", address]) == 0

    assert "/simple/rllm-unrelated/ cannot be read: its server answers 404" in capsys.readouterr().err
    _check_index(f"--index-url {address}")


@pytest.mark.parametrize("field", ["Name: x; curl", "Version: 1; curl", "Name: ", "Name: a\x1b[2J"])
def test_invalid_name_or_version_is_ignored(field: str) -> None:
    name, value = field.split(": ")
    package = Message()
    for key, text in ({"Name": "rllm-odd", "Version": "1.0", "Keywords": "rllm-plugin"} | {name: value}).items():
        package[key] = text

    assert list(list_entries([package])) == []


def test_unreadable_index_is_an_error_without_password(cache: Path, capsys) -> None:
    with _serving({}) as address:
        assert main(["plugins", "refresh", address.replace("//", "//me:secret@"), "rllm-median"]) == 1

    printed = capsys.readouterr().err
    check_printed(printed, "index-not-readable", f"{address}/rllm-median/", "404")
    assert "secret" not in printed
    assert not cache.exists()


def test_index_is_a_directory_or_an_address(capsys) -> None:
    assert main(["plugins", "refresh", "no-such-directory"]) == 1

    check_printed(capsys.readouterr().err, "index-not-readable", "no-such-directory", "directory with wheels")
