"""Sphinx builds the documentation site from docs/: ``make site``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "rllm"
author = "The rllm authors"
project_copyright = "The rllm authors, Apache-2.0"
extensions = ["myst_parser", "sphinx_copybutton", "rllm_site"]
root_doc = "README"
exclude_patterns = ["generate", "site"]
source_suffix = {".md": "markdown"}
nitpicky = True
# Options such as `--resume` stay unchanged.
smartquotes = False
# The language of nearly all indented blocks.
highlight_language = "sh"
# Anchors of headings, in the format of GitHub.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "rllm"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
