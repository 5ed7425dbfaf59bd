"""The page as one file: style, script and answers in it, and a policy that lets nothing else run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_core.files import write_atomically
from rllm_view.api.answers import Answers
from rllm_view.api.as_json import as_json
from rllm_view.api.library import Library
from rllm_view.pages.assets import PAGE, assets
from rllm_view.reading.settings import Given
from rllm_view.static.contents import contents_of

EPISODES = 100


def write_page(
    folders: Sequence[Path], out: Path, episodes: int = EPISODES, given: Sequence[Given] | None = None
) -> None:
    """Write the pages of runs as one file that a browser opens without a server.

    Args:
        folders: runs, and folders of runs.
        out: the file, replaced as a whole.
        episodes: most trajectories of each run that are there with their tokens: whole groups of the newest steps.
        given: values of the runs that are no defaults; None: those that their users gave.

    Raises:
        ConfigError: the folders hold no run.
        RecordError: a file of the record cannot be read.
    """
    library = Library(folders)
    try:
        runs = library.runs()
        if not runs:
            raise ConfigError(
                "run-not-found",
                f"{', '.join(map(str, folders))}: there is no run.",
                "Use a run folder. `rllm runs list` lists them.",
            )
        contents = contents_of(Answers(library), episodes)
        if given is not None:
            for run in contents["runs"].values():
                run["overview"]["given"] = given
    finally:
        library.close()
    start = f"#/run/{runs[0].place.id}" if len(runs) == 1 else "#/"
    write_atomically(out, page_of(as_json(contents), start))


def page_of(contents: bytes, start: str) -> str:
    """The file. `contents` is JSON; `start` the address that it opens at."""
    script, style = join_modules(), assets()["style.css"].body.decode()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # As base64 there is nothing in it that ends the element, whatever a model wrote.
    data = base64.b64encode(gzip.compress(contents, mtime=0)).decode()
    head = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n<style>{style}</style>\n'
    copy = f'<script id="copy" type="application/octet-stream" data-start="{escape(start)}">{data}</script>\n'
    page = re.sub(r"<(link|script) .*\n", "", assets()[PAGE].body.decode())
    page = page.replace("</head>", f"{head}</head>")
    return page.replace("</body>", f"{copy}<script>{script}</script>\n</body>")


def join_modules() -> str:
    """Return the modules of the pages as one script, because a file that is opened from a disk may import none.

    The modules have no top-level name in common, and only the last module runs code when it is loaded.
    """
    names = sorted((name for name in assets() if name.endswith(".js")), key=lambda name: (name == "main.js", name))
    text = "".join(assets()[name].body.decode() for name in names)
    text = re.sub(r"^(import .*\n|export )", "", text, flags=re.MULTILINE)
    return f'"use strict";\n(() => {{\n{text}}})();\n'


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
