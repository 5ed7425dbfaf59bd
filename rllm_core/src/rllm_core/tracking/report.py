"""report.html: one page a run can be shown with, no other file needed."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from rllm_core.config.resolve import leaves
from rllm_core.files import write_atomically
from rllm_core.plan import RunPlan
from rllm_core.run_folder import REPORT

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
th, td { text-align: left; padding: 0.2rem 1rem 0.2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
img { max-width: 100%; }
code { font-size: 0.9em; }
"""


def write_report(plan: RunPlan, folder: Path, validation: Mapping[str, float], picture: Path | None) -> Path:
    """Write the last validation, the picture, the plugins, and every value that is not a default, with its origin."""
    changed = [
        (".".join(path), json.dumps(value), plan.composed.origins[".".join(path)])
        for path, value in leaves(plan.composed.tree)
        if plan.composed.origins[".".join(path)] != "default"
    ]
    plugins = [(entry.kind, entry.name, entry.distribution, entry.version) for entry in plan.registered()]
    title = f"{plan.config.rllm.trainer.project_name} / {plan.config.rllm.trainer.experiment_name}"
    parts = [
        f"<!doctype html><meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        "<h2>Last validation</h2>",
        _table(("figure", "value"), [(name, f"{value:.4f}") for name, value in validation.items()]),
    ]
    if picture is not None:
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(
            f"<h2>Training</h2><img alt='reward and solved share over steps' src='data:image/png;base64,{data}'>"
        )
    parts += [
        "<h2>Values that are not the core's defaults</h2>",
        _table(("key", "value", "origin"), changed),
        "<h2>Plugins</h2>",
        _table(("kind", "name", "distribution", "version"), plugins),
    ]
    file = folder / REPORT
    write_atomically(file, "\n".join(parts))
    return file


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
