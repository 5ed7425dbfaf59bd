"""Runs the stages of ``make ci`` and ``make release``, and prints their times.

``make ci`` runs quick and smoke tests, one environment of wheels, the site, and the parts whose files changed since the
last release test, whose commit is in `.ci/released`. If that commit is unknown or older than `MAX_AGE`, it also runs a
third of the long tests and one part. The hash of the current commit chooses both, so each submission runs others.
``make release`` runs all of them, and then writes `.ci/released`. It needs a working tree without changes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from workspace import ROOT

RELEASED = ROOT / ".ci/released"
MAX_AGE = 2 * 24 * 3600
"""Seconds."""
PARTS = {
    "test-wheels": ("tests/wheels", "tests/tools/build_distributions.py", "/pyproject.toml"),
    "test-clients": (
        "tests/clients",
        "examples/agents_sdk",
        "plugins/rllm_gateway/src",
        "rllm/src/rllm/builtin/sandboxes",
        "rllm/src/rllm/builtin/tasks",
        "constraints-clients.txt",
    ),
    "test-envs": (
        "plugins/rllm_envs",
        "plugins/rllm_record/src/rllm_record/interchange",
        "plugins/rllm_view/tests/real",
        "constraints-harbor.txt",
        "constraints-inspect.txt",
        "constraints-nemo-gym.txt",
        "constraints-openenv.txt",
        "constraints-verifiers.txt",
    ),
    "test-trackers": ("rllm/tests/real", "rllm/src/rllm/builtin/trackers", "constraints-trackers.txt"),
    "test-plugins": ("examples/plugins", "plugins/rllm_plugin_kit/src", "tests/e2e/test_example_plugins.py"),
    "test-kernels": (
        "plugins/rllm_local",
        "plugins/rllm_backend_kit",
        "plugins/rllm_estimators",
        "plugins/rllm_tinker_server/src",
        "rllm_core/src/rllm_core/updates",
        "rllm_core/src/rllm_core/algorithms",
        "rllm_tinker/src",
        "rllm/src/rllm/builtin/preferences",
        "tests/conformance",
    ),
}
"""Target -> beginnings or ends of the names of files that it tests."""
NOT_LONG = "not long and not nightly and not gpu"
EVERYTHING = "not nightly and not gpu"


@dataclass(frozen=True)
class Stage:
    """A target of make, and the reason why it runs."""

    words: tuple[str, ...]
    reason: str


def git(*words: str) -> str | None:
    """Return what git prints, or None if it fails, as in a clone without the commit."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def changed_parts(commit: str) -> Iterator[Stage]:
    """Return the parts whose files changed since a commit."""
    files = (git("diff", "--name-only", "--no-renames", commit) or "").split()
    for target, places in PARTS.items():
        if found := [file for file in files if file.startswith(places) or file.endswith(places)]:
            yield Stage((target,), f"{found[0]} changed since {commit[:10]}")


def stages_of_ci() -> list[Stage]:
    """Return what ``make ci`` runs at the current commit."""
    commit = RELEASED.read_text(encoding="utf-8").strip() if RELEASED.exists() else ""
    date = git("show", "--no-patch", "--format=%ct", commit) if commit else None
    parts = list(changed_parts(commit)) if date is not None else []
    if date is not None and time.time() - int(date) < MAX_AGE:
        tests = Stage(("test", f"MARKS={NOT_LONG}"), "always")
    else:
        turn = int(git("rev-parse", "HEAD") or "0", 16)
        why = "the last release test is unknown or too old"
        tests = Stage(("test", f"MARKS={EVERYTHING}", f"LONG_PART={turn % 3 + 1}/3"), f"with long tests, because {why}")
        part = Stage(([*PARTS][turn % len(PARTS)],), why)
        parts += [part] if part.words not in [stage.words for stage in parts] else []
    if not any("test-wheels" in stage.words for stage in parts):
        parts.insert(0, Stage(("test-wheels", "WHEELS=smoke"), "always"))
    return [tests, *parts, Stage(("site",), "always")]


def stages_of_release() -> list[Stage]:
    """Return what ``make release`` runs."""
    targets = [("test", f"MARKS={EVERYTHING}"), *((part,) for part in PARTS), ("site",)]
    return [Stage(words, "always") for words in targets]


def run(stages: list[Stage]) -> int:
    """Run the stages until one fails, and print the seconds of each. Return the exit code."""
    lines = []
    for number, stage in enumerate(stages, 1):
        print(f"stage {number} of {len(stages)}: make {' '.join(stage.words)} ({stage.reason})", flush=True)
        start = time.monotonic()
        code = subprocess.run(["make", "--no-print-directory", *stage.words], cwd=ROOT).returncode
        lines.append(f"{time.monotonic() - start:7.0f} s  make {' '.join(stage.words)}{'  FAILED' if code else ''}")
        if code:
            break
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    release = sys.argv[1:] == ["release"]
    if release and git("status", "--porcelain"):
        sys.exit("error: `make release` tests a commit, and the working tree has changes. Commit them first.")
    code = run(stages_of_release() if release else stages_of_ci())
    if release and not code:
        RELEASED.write_text(f"{git('rev-parse', 'HEAD')}\n", encoding="utf-8")
    sys.exit(code)
