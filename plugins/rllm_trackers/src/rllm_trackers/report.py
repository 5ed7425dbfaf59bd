"""report.html: one page a run can be shown with, no other file needed."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rllm_core.config import leaves
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.files import write_atomically
from rllm_core.runs.run_folder import METRICS, PICTURE, PLUGINS, REPORT, read_lines
from rllm_trackers.picture import draw_reward_curve

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
th, td { text-align: left; padding: 0.2rem 1rem 0.2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
img { max-width: 100%; }
code { font-size: 0.9em; }
"""


class ReportTracker(Observer):
    """Draws the picture and writes the page when the run ends, however it ends."""

    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        self._run = run
        self._began = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._began = True

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Everything is in the run folder by then."""

    def close(self) -> None:
        if not self._began:
            return  # what lies in the folder is another run's
        folder = self._run.folder
        history = read_lines(folder / METRICS) if (folder / METRICS).exists() else []
        picture = draw_reward_curve(history, folder / PICTURE, self._run.experiment_name)
        write_atomically(folder / REPORT, _page(self._run, history, picture))


def _page(run: TrackedRun, history: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
    """The last validation, the picture, every value that is not a default with its origin, and the plugins."""
    title = escape(f"{run.project_name} / {run.experiment_name}")
    parts = [
        f"<!doctype html><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>",
        "<h2>Last validation</h2>",
        _table(("figure", "value"), [(name, f"{value:.4f}") for name, value in _last_validation(history).items()]),
    ]
    if picture is not None:
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(
            f"<h2>Training</h2><img alt='reward and solved share over steps' src='data:image/png;base64,{data}'>"
        )
    changed = [
        (".".join(path), json.dumps(value), run.origins[".".join(path)])
        for path, value in leaves(dict(run.config))
        if run.origins.get(".".join(path), "default") != "default"
    ]
    used = json.loads((run.folder / PLUGINS).read_text(encoding="utf-8"))
    columns = ("kind", "name", "distribution", "version")
    parts += [
        "<h2>Values that are not the core's defaults</h2>",
        _table(("key", "value", "origin"), changed),
        "<h2>Plugins</h2>",
        _table(columns, [[entry[column] for column in columns] for entry in used]),
    ]
    return "\n".join(parts)


def _last_validation(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    for line in reversed(history):
        if found := {name: value for name, value in line.items() if name.startswith("val/") and value is not None}:
            return found
    return {}


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
