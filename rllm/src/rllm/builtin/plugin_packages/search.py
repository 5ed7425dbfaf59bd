"""`rllm plugins search`: installed plugins, and plugins of all packages in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from rllm_core.errors import did_you_mean
from rllm_core.notices import harmless, one_line
from rllm_core.plugins.discovery import IndexEntry, discover, normalize, read_index, read_published_packages
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS


class Offer(NamedTuple):
    """A plugin or command of a package."""

    kind: str
    """Kind of plugin, ``command``, or ``package`` for a package that does not list its plugins."""
    name: str
    summary: str
    distribution: str
    version: str | None
    """The version that the index describes. None for a package of the rllm repository, or outside the index."""
    installed: str | None
    """The installed version of the package. None if it is not installed."""
    repository: str | None
    install: str | None
    """The command that installs the package. None if it is installed."""


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def search(words: tuple[str, ...], is_json: bool) -> None:
    """Find plugins by kind, name or description, also plugins that are not installed.

    Each WORD must occur in the kind, name, description or package of a plugin. The search needs no network. `rllm
    plugins refresh` adds packages that are newer than this version of rllm.

    \b
    Examples:
      rllm plugins search median
      rllm plugins search environment games
      rllm plugins search --json | jq -r '.[] | select(.installed == null) | .distribution' | uniq
    """
    from rllm_record.terminal import print_table

    # The index has more about a plugin, for example its repository, so its entries come last and replace local ones.
    both = (*list_local_offers(), *list_offers())
    offers = [*{(offer.kind, offer.name, offer.distribution): offer for offer in both}.values()]
    found = [offer for offer in offers if matches(offer, words)]
    if is_json:
        import json

        click.echo(json.dumps([offer._asdict() for offer in found], indent=2))
        return
    rows = [(offer.kind, offer.name, offer.summary, _describe_package(offer)) for offer in found]
    print_table(("kind", "name", "what it does", "package"), rows, bold=1)
    commands = [offer.install for offer in found if offer.install]
    if commands:
        click.echo(f"\nInstall a package: {commands[0]}")
    elif not found:
        known = {word for offer in offers for word in re.findall(r"\w+", _text_of(offer))}
        unknown = [word.lower() for word in words if not any(matches(offer, [word]) for offer in offers)]
        for guess in filter(None, (did_you_mean(word, known) for word in unknown)):
            click.echo(guess, err=True)
        click.echo("`rllm plugins refresh INDEX` reads more packages from an index.", err=True)


def list_local_offers() -> Iterator[Offer]:
    """Yield the installed plugins."""
    registry = Registry.load()
    for entry in (entry for kind in KINDS for entry in registry.all(kind)):
        home = normalize(entry.distribution)
        yield Offer(entry.kind, entry.name, entry.plugin.summary, home, None, entry.version, None, None)


def list_offers() -> Iterator[Offer]:
    """Yield the plugins of all packages in the index: first this repository's packages, then other authors'."""
    discovery = discover()
    installed = {
        normalize(each.distribution): each.version
        for each in (*discovery.candidates, *discovery.blocked, *discovery.commands)
    }
    yield from _offers(read_index(), installed)
    yield from _offers(read_published_packages(), installed)


def matches(offer: Offer, words: Sequence[str]) -> bool:
    """Return True if each of `words` occurs in the offer, in lower or upper case."""
    text = _text_of(offer)
    return all(word.lower() in text for word in words)


def _text_of(offer: Offer) -> str:
    return " ".join((offer.kind, offer.name, offer.summary, offer.distribution)).lower()


def _offers(entries: Mapping[str, IndexEntry], installed: Mapping[str, str]) -> Iterator[Offer]:
    for distribution, entry in entries.items():
        offers = entry.offers or {"package": {distribution: entry.summary}}
        for kind, summaries in offers.items():
            for name, summary in summaries.items():
                text = harmless(one_line(summary))
                version = installed.get(distribution)
                command = entry.install_command(distribution) if version is None else None
                place = entry.repository or None
                yield Offer(kind, name, text, distribution, entry.version or None, version, place, command)


def _describe_package(offer: Offer) -> str:
    if offer.installed is None:
        return f"{offer.distribution} {offer.version or ''}".rstrip() + " (not installed)"
    is_other = offer.version not in (None, offer.installed)
    return f"{offer.distribution} {offer.installed}" + (f" (the index has {offer.version})" if is_other else "")
