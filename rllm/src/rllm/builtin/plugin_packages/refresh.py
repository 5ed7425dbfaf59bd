"""`rllm plugins refresh`: add packages of an index to the index of `rllm plugins search`.

A package lists its plugins in its keywords: ``rllm-plugin`` for the package, and ``rllm-KIND:NAME`` for each plugin. So
no code of the package runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rllm_core.plugins.discovery import IndexEntry

KEYWORD = "rllm-plugin"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_VERSION = re.compile(r"[0-9][0-9a-z.!+-]*")
_OFFER = re.compile(r"rllm-([a-z]+):([a-z][a-z0-9_ -]*)")
_SOURCES = ("repository", "source", "source code", "code", "homepage")
"""Labels of addresses in a package's metadata, in the order of preference."""


@click.command()
@click.argument("index")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "is_json", is_flag=True, help="Print the new entries of the index as JSON.")
def refresh(index: str, names: tuple[str, ...], is_json: bool) -> None:
    """Read packages with the keyword rllm-plugin from INDEX, for `rllm plugins search`.

    INDEX is an address as for `pip install --index-url`, or a directory with wheels. With NAME, only these packages are
    read, and packages from earlier calls are kept. Without NAME, all packages with `rllm` in their name are read. The
    result is stored in your cache directory. Nothing is installed.

    \b
    Examples:
      rllm plugins refresh https://packages.example.org/simple
      rllm plugins refresh https://packages.example.org/simple rllm-median
      rllm plugins refresh ./wheels
    """
    import json
    import shlex

    from rllm.builtin.plugin_packages.index_reader import read_directory, read_index, without_password
    from rllm_core.errors import RllmError
    from rllm_core.files import write_atomically
    from rllm_core.plugins.discovery import read_refreshed_packages, refreshed_index_path
    from rllm_record.terminal import print_table

    directory = Path(index).expanduser()
    if directory.is_dir():
        packages, options = read_directory(directory, names), f"--find-links {shlex.quote(str(directory.absolute()))}"
    elif "://" not in index:
        hint = "Write the path of a directory with wheels, or an address that starts with https://."
        raise RllmError("index-not-readable", f"{index} is neither a directory nor an address.", hint)
    else:
        packages, options = read_index(index, names), f"--index-url {shlex.quote(without_password(index))}"
    found = {name: entry._replace(options=options) for name, entry in list_entries(packages)}
    file = Path(refreshed_index_path())
    entries = dict(read_refreshed_packages()) | found if names else found
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps({name: entry._asdict() for name, entry in entries.items()}, indent=1) + "\n")
    if is_json:
        click.echo(json.dumps({name: entry._asdict() for name, entry in found.items()}, indent=2))
        return
    rows = [(name, entry.version, format_offers(entry)) for name, entry in sorted(found.items())]
    print_table(("package", "version", "offers"), rows)
    unlisted = [name for name, entry in found.items() if not entry.offers]
    if unlisted:
        click.echo(f"Without keywords such as rllm-estimator:NAME: {', '.join(unlisted)}.")
    click.echo(f"{len(found)} of {len(packages)} packages have the keyword {KEYWORD}. Stored in {file}.")


def list_entries(packages: Iterable[Message]) -> Iterator[tuple[str, IndexEntry]]:
    """Yield the name and the index entry of each package with the keyword ``rllm-plugin``.

    A name or version that is not valid is ignored, because users copy commands that contain it.
    """
    from rllm_core.plugins.discovery import IndexEntry, normalize

    for metadata in packages:
        keywords = [keyword.strip() for keyword in metadata.get("Keywords", "").split(",")]
        name, version = normalize(metadata.get("Name", "")), metadata.get("Version", "")
        if KEYWORD in keywords and _NAME.fullmatch(name) and _VERSION.fullmatch(version):
            summary = metadata.get("Summary", "")
            offers: dict[str, dict[str, str]] = {}
            for kind, plugin in read_offers(keywords):
                offers.setdefault(kind, {})[plugin] = summary
            yield name, IndexEntry(summary, offers, {}, (), "", (), version, _find_repository(metadata))


def read_offers(keywords: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the plugins that keywords list."""
    from rllm_core.plugins.discovery import COMMAND
    from rllm_core.plugins.specs import KINDS

    for keyword in keywords:
        if (match := _OFFER.fullmatch(keyword)) and match[1] in {*KINDS, COMMAND}:
            yield match[1], match[2]


def format_offers(entry: IndexEntry) -> str:
    """Return kinds and names as text: ``estimator median, loss clipped``."""
    return ", ".join(f"{kind} {' '.join(names)}" for kind, names in entry.offers.items())


def _find_repository(metadata: Message) -> str:
    """Return the address of a package's source. Empty if its metadata has none."""
    urls = [str(value).partition(",") for value in metadata.get_all("Project-URL", [])]
    by_label = {label.strip().lower(): url.strip() for label, _, url in urls}
    return next((by_label[label] for label in _SOURCES if label in by_label), "")
