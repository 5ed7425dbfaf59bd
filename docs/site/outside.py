"""Links to pages that are not part of the site, such as `examples/README.md`: the repository has them, and a reader of
the site gets their names."""

from __future__ import annotations

import re

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+\.md)(?:#[^)]*)?\)")


def named_outside(docname: str, text: str) -> str:
    """A page with names in place of links that leave docs/.

    Args:
        docname: of the page, from docs/ and without ending: ``how-to/train``.
        text: its Markdown.
    """
    directories = docname.count("/")

    def named(link: re.Match[str]) -> str:
        words, up, path = link.groups()
        return f"{words} (`{path}`)" if up.count("../") > directories else link[0]

    return LINK.sub(named, text)
