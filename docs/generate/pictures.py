"""The pictures of docs/explain: ``python docs/generate/pictures.py`` writes them.

Each picture has its own background, light or dark like the reader's screen, so that it is readable on any page.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "explain"
STYLE = """\
.card{fill:#f6f8fb;stroke:#d5dbe5}.box{fill:#fff;stroke:#5b6b86;stroke-width:1.5}.strong{fill:#dce7fb;stroke:#2f5fb3;stroke-width:1.5}
.lost{fill:#fdeee6;stroke:#b6562b;stroke-width:1.5;stroke-dasharray:5 3}
text{font:15px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1a2230}.small{font-size:13px;fill:#4b586e}
.line{fill:none;stroke:#5b6b86;stroke-width:1.8}.tip{fill:#5b6b86}
@media (prefers-color-scheme:dark){.card{fill:#161b24;stroke:#323b4c}.box{fill:#202838;stroke:#8e9db8}
.strong{fill:#1f3560;stroke:#86aef5}.lost{fill:#43281b;stroke:#e39a70}text{fill:#e8ecf4}.small{fill:#b3bfd2}
.line{stroke:#8e9db8}.tip{fill:#8e9db8}}"""


def box(x: int, y: int, width: int, lines: Iterable[str], kind: str = "box") -> str:
    """A box of 56 units of height; the first line is its name, the others are small."""
    first, *more = lines
    middle = x + width // 2
    parts = [f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="56" rx="8"/>']
    parts.append(f'<text x="{middle}" y="{y + (25 if more else 33)}" text-anchor="middle">{escape(first)}</text>')
    parts += [
        f'<text class="small" x="{middle}" y="{y + 44}" text-anchor="middle">{escape(line)}</text>' for line in more
    ]
    return "".join(parts)


def arrow(*points: tuple[int, int]) -> str:
    """A line through points, with a tip at the last."""
    path = " ".join(f"{'M' if not number else 'L'}{x} {y}" for number, (x, y) in enumerate(points))
    return f'<path class="line" d="{path}" marker-end="url(#tip)"/>'


def note(x: int, y: int, text: str, anchor: str = "middle") -> str:
    """Small text."""
    return f'<text class="small" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def picture(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """A whole file."""
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'
    size = f'viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    card = f'<rect class="card" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="12"/>'
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{tip}</defs>",
            card,
            *parts,
            "</svg>\n",
        ]
    )


def step() -> str:
    """Two rows: from tasks to groups, and from a batch to new weights."""
    upper = [
        ("tasks", "from the data"),
        ("episodes", "generate"),
        ("groups", "filter, group, reject"),
        ("batch", "build_batch"),
    ]
    lower = [
        ("new weights", "version + 1"),
        ("gradient", "loss, update"),
        ("advantages", "estimator"),
        ("log-probs, values", "process"),
    ]
    parts = []
    for number, names in enumerate(upper):
        parts.append(box(24 + 184 * number, 40, 152, names, "strong" if number == 1 else "box"))
    for number, names in enumerate(lower):
        parts.append(box(24 + 184 * number, 168, 152, names, "strong" if number == 0 else "box"))
    parts += [arrow((176 + 184 * number, 68), (206 + 184 * number, 68)) for number in range(3)]
    parts.append(arrow((652, 96), (652, 166)))
    parts += [arrow((206 + 184 * number, 196), (178 + 184 * number, 196)) for number in (2, 1, 0)]
    parts.append(arrow((100, 168), (100, 132), (284, 132), (284, 98)))
    parts.append(note(192, 126, "sample the next step"))
    parts.append(note(380, 28, "rllm.rollout.n rollouts of each task; groups without signal are dropped"))
    return picture("The life of a training step", 760, 248, parts)


def seeds() -> str:
    """A tree from the seed of the run to that of a token."""
    parts = [box(280, 20, 200, ("rllm.trainer.seed", "the seed of the run"), "strong")]
    below = [
        ("order of tasks", "epoch"),
        ("model", "first weights"),
        ("rollouts", "batch of tasks"),
        ("validation", "as rollouts"),
        ("update", "step"),
    ]
    for number, names in enumerate(below):
        x = 16 + 148 * number
        parts.append(box(x, 128, 136, names, "strong" if number == 2 else "box"))
        parts.append(arrow((380, 76), (380, 100), (x + 68, 100), (x + 68, 126)))
    parts += [box(296, 220, 168, ("rollout", "task, number, try")), arrow((380, 184), (380, 218))]
    parts += [box(296, 312, 168, ("model call", "digest of the prompt")), arrow((380, 276), (380, 310))]
    parts += [box(540, 312, 168, ("token", "position")), arrow((464, 340), (538, 340))]
    parts += [box(608, 220, 136, ("noise of a loss", "minibatch")), arrow((676, 184), (676, 218))]
    parts.append(note(24, 250, "Each seed is a function of the one above", "start"))
    parts.append(note(24, 270, "and of its place. Nothing is stored.", "start"))
    return picture("Seeds of a run", 760, 388, parts)


def resume() -> str:
    """Two lines of steps: a kill, and Ctrl-C."""
    parts = [note(24, 34, "kill -9 in step 7, with rllm.trainer.save_freq=5", "start")]
    for number in range(9):
        again = number in (5, 6)
        parts.append(box(24 + 80 * number, 48, 64, (str(number + 1),), "lost" if again else "box"))
    parts += [note(380, 128, "checkpoint"), arrow((380, 114), (380, 106))]
    parts.append(note(480, 128, "made again: the same numbers", "start"))
    parts.append(note(24, 170, "Ctrl-C in step 7", "start"))
    for number in range(9):
        parts.append(box(24 + 80 * number, 184, 64, (str(number + 1),), "box"))
    parts += [arrow((536, 250), (536, 242)), note(536, 264, "step 7 ends, and is saved")]
    return picture("What is made again after a stop", 760, 284, parts)


PICTURES = {"step.svg": step, "seeds.svg": seeds, "resume.svg": resume}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DIRECTORY / name).write_text(draw(), encoding="utf-8")
