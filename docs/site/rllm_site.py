"""What the site adds to the pages: the order of navigation, and every config key in the search.

The pages stay plain Markdown, which reads well where it is not built.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from docutils import nodes
from navigation import NAVIGATION
from outside import named_outside
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

CONFIG_PAGE = "reference/config"


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the lists of pages below a page."""
    for caption, entries in NAVIGATION.get(docname, {}).items():
        source[0] += "\n".join(
            ["\n\n```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *entries, "```\n"]
        )


def name_files_outside(app: Sphinx, docname: str, source: list[str]) -> None:
    """Name a page that is not part of the site, where the repository has a link to it."""
    source[0] = named_outside(docname, source[0])


def put_keys_into_the_search(app: Sphinx, document: nodes.document) -> None:
    """Index each key by its last name too, because the search compares whole entries of an index."""
    if app.env.docname != CONFIG_PAGE:
        return
    # 200 keys in the table of contents would be as long as the page.
    app.env.metadata[CONFIG_PAGE]["tocdepth"] = 2
    for section in list(document.findall(nodes.section)):
        title = section.next_node(nodes.title)
        if title is None or not isinstance(title[0], nodes.literal):
            continue
        key = title.astext()
        entries = [("single", name, section["ids"][0], "main", None) for name in (key, key.rpartition(".")[2])]
        section.insert(1, addnodes.index(entries=entries))


def write_start_page(app: Sphinx, error: Exception | None) -> None:
    """Copy the first page to where browsers and servers look for it."""
    if error is None:
        directory = Path(app.outdir)
        shutil.copyfile(directory / f"{app.config.root_doc}.html", directory / "index.html")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", name_files_outside)
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", put_keys_into_the_search)
    app.connect("build-finished", write_start_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
