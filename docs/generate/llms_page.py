"""docs/llms.txt: all pages with their first sentence, for programs and language models.

``python docs/generate/llms_page.py`` prints it. The format is the proposal llms.txt: a heading, a summary, and sections
with lists of links.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

from page_text import one_line

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS / "site"))

from navigation import NAVIGATION  # noqa: E402  (in docs/site)

HEAD = """# rllm

> {summary}

The command `rllm` trains and evaluates. `rllm COMMAND --help` has examples, and `rllm skill` prints instructions for
coding agents. Paths below are relative to this file.
"""
NOT_PAGES = ("generate", "site")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def page() -> str:
    """Return the file's text."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    sections = [HEAD.format(summary=first_sentence(readme.partition("\n\n")[2].partition("\n\n")[2]))]
    pages = sorted(str(file.relative_to(DOCS).with_suffix("")) for file in DOCS.rglob("*.md"))
    pages = [name for name in pages if name.partition("/")[0] not in NOT_PAGES]
    for parent, captions in NAVIGATION.items():
        directory = parent.rpartition("/")[0]
        for caption, entries in captions.items():
            patterns = [f"{directory}/{entry}" if directory else entry for entry in entries]
            names = [name for pattern in patterns for name in pages if fnmatch(name, pattern)]
            sections.append(f"## {caption}\n\n" + "".join(map(_line, names)))
    return "\n".join(sections)


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's text without links, before its first table, list or block."""
    lines = [line for line in _COMMENT.sub("", text).splitlines() if not line.startswith(("#", ">"))]
    paragraph = "\n".join(lines).strip().partition("\n\n")[0]
    plain = one_line(_LINK.sub(r"\1", paragraph))
    return re.split(r"(?<=\.)\s", plain, maxsplit=1)[0]


def _line(name: str) -> str:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    return f"- [{title}]({name}.md): {first_sentence(text)}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
