"""Every link between Markdown pages of the repository leads to a file, and to its heading if it has one."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

from workspace import ROOT

LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
FOREIGN = ("http://", "https://", "mailto:")


def pages() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.splitlines() if "templates" not in name and (ROOT / name).is_file()]


@cache
def anchors(file: Path) -> set[str]:
    """Return the anchors that GitHub makes from headings."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        number = next(number for number in range(1000) if (f"{anchor}-{number}" if number else anchor) not in found)
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def test_every_link_leads_somewhere() -> None:
    for page in pages():
        file = ROOT / page
        text = CODE.sub("", file.read_text(encoding="utf-8"))
        for link in LINK.findall(text):
            if link.startswith(FOREIGN):
                continue
            path, _, anchor = link.partition("#")
            target = (file.parent / path).resolve() if path else file
            assert target.exists(), f"{page}: {link}: there is no {target}"
            if anchor:
                assert anchor in anchors(target), f"{page}: {link}: no such heading"
