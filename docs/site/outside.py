"""Links to pages that are not part of the site, such as `examples/README.md`: the repository has them, and a reader of
the site gets their names."""

from __future__ import annotations

import re

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+\.(?:md|ipynb))(?:#[^)]*)?\)")


def named_outside(docname: str, text: str) -> str:
    """Return a page with names instead of links to files outside docs/.

    Args:
        docname: path of the page from docs/, without suffix: ``how-to/train``.
        text: the Markdown of the page.
    """
    directories = docname.count("/")

    def named(link: re.Match[str]) -> str:
        words, up, path = link.groups()
        return f"{words} (`{path}`)" if up.count("../") > directories else link[0]

    return LINK.sub(named, text)
