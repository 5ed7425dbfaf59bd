"""Keys, paths and counts in the text of the documents are correct."""

from __future__ import annotations

import importlib.util
import re
from functools import cache

import pytest
from documents import text_of
from pydantic import BaseModel
from workspace import ROOT

from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS
from rllm_core.schema.run_config import RunConfig

FOUND = (page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md"))
SKILL = "rllm/src/rllm/.agents/skills/rllm/SKILL.md"
PAGES = ["README.md", "AGENTS.md", "SECURITY.md", SKILL, "examples/README.md", *sorted(FOUND)]
ARCHITECTURE = "docs/contributing/architecture.md"
GATEWAY = "docs/contributing/gateway.md"
CODE = re.compile(r"```.*?```|`([^`\n]+)`", re.DOTALL)
KEY = re.compile(r"^rllm(?:\.[a-z_0-9]+)+")
PATH = re.compile(r"^(?:docs|examples|tests|benchmarks|plugins|rllm_\w+|rllm)/[\w./*-]*\w/?$")
COUNT = re.compile(r"\b(\w+) (kinds of plugins?|(?:advantage )?estimators|(?:policy )?losses|short runs)\b")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NOT_KEYS = {
    "rllm.data",
    "rllm.rollout.train",
    "rllm.rollout.val",
    "rllm.gateway",
    "rllm.commands",
    "rllm.commands.plugins",
    "rllm.formats",
}
"""Keys of rLLM, and groups of entry points."""
BY_ROLE = ("rllm.algorithm.loss_map.", "rllm.algorithm.estimator_map.")
"""Keys below these are roles."""
NOT_PATHS = {"tests/test_my_estimator.py", "tests/test_my_rloo.py", "tests/failed"}
"""Files of new packages, and a metric."""


def code_spans(page: str) -> list[str]:
    """Return what a page has in backticks, without its blocks."""
    return [span for span in CODE.findall(text_of(page)) if span]


@cache
def registry() -> Registry:
    return Registry.load()


@cache
def options() -> frozenset[str]:
    """Return the names of all options of plugins, also of nested ones."""

    def names(model: type[BaseModel]) -> set[str]:
        found = set(model.model_fields) | {field.alias for field in model.model_fields.values() if field.alias}
        for field in model.model_fields.values():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                found |= names(field.annotation)
        return found

    plugins = [entry.plugin for kind in KINDS for entry in registry().all(kind)]
    return frozenset({"name"}.union(*(names(plugin.params) for plugin in plugins)))


def is_key(dotted: str) -> bool:
    """Return True if a key of the schema, an option of a plugin, or a Python module has this name."""
    model: object = RunConfig
    for part in dotted.split("."):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return part in options()
        if part not in model.model_fields:
            return is_module(dotted)
        model = model.model_fields[part].annotation
    return True


def is_module(dotted: str) -> bool:
    """Return True if this is a module, or a name in one."""
    for name in (dotted, dotted.rpartition(".")[0]):
        try:
            if name.count(".") and importlib.util.find_spec(name):
                return True
        except ModuleNotFoundError:
            continue
    return False


def test_keys_in_the_text_exist() -> None:
    keys = {match[0]: page for page in PAGES for span in code_spans(page) if (match := KEY.match(span))}
    wrong = {key for key in keys if not is_key(key) and not key.startswith(BY_ROLE)} - NOT_KEYS
    assert {key: keys[key] for key in wrong} == {}


def test_paths_in_the_text_exist() -> None:
    paths = {span: page for page in PAGES for span in code_spans(page) if PATH.match(span)}
    wrong = {path for path in paths if not list(ROOT.glob(path.rstrip("/")))} - NOT_PATHS
    assert {path: paths[path] for path in wrong} == {}


def test_tests_in_the_text_exist() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("**/tests/**/test_*.py"))
    tests = set(re.findall(r"\bdef (test_\w+)", sources))
    spans = [span for span in code_spans(GATEWAY) if span.startswith("test_")]
    assert spans
    assert [span for span in spans if span not in tests] == []


def test_files_and_directories_of_the_architecture_exist() -> None:
    spans = [span for span in code_spans(ARCHITECTURE) if re.fullmatch(r"[\w/]+(?:\.py|\.toml|/)", span)]
    bases = [ROOT, *(ROOT / source for source in ("rllm_core/src/rllm_core", "plugins/rllm_gateway/src/rllm_gateway"))]
    assert spans
    assert [span for span in spans if not any((base / span).exists() for base in bases)] == []


def test_architecture_diagram_has_all_packages_of_program() -> None:
    diagram = text_of(ARCHITECTURE).split("```")[1]
    packages = {file.parent.name for file in (ROOT / "rllm/src/rllm").glob("*/__init__.py")}
    assert packages - set(re.findall(r"\w+", diagram)) == set()


def test_counts_in_the_text_are_right() -> None:
    numbers = {
        "kinds of plugin": len(KINDS),
        "estimators": len(registry().all("estimator")),
        "losses": len(registry().all("loss")),
        "short runs": len(
            [directory for directory in (ROOT / "examples").iterdir() if (directory / "run.yaml").is_file()]
        ),
    }
    wrong = []
    for page in PAGES:
        for number, what in COUNT.findall(text_of(page)):
            there = numbers[re.sub(r"^(advantage|policy) |(?<=plugin)s$", "", what)]
            said = (
                WORDS.index(number.lower()) if number.lower() in WORDS else int(number) if number.isdigit() else there
            )
            wrong += [f"{page}: {number} {what}, and there are {there}"] if said != there else []
    assert not wrong


def test_install_page_counts_plugins_and_commands() -> None:
    found = Registry.load(environ={})
    plugins = [entry for kind in KINDS for entry in found.all(kind) if entry.distribution.startswith("rllm")]
    counts = f"{len(plugins)} plugins and {len(found.discovery.commands)} commands checked"
    assert counts in text_of("docs/install.md")


@pytest.mark.parametrize("kind", ["estimator", "loss"])
def test_every_algorithm_is_in_its_pages_table(kind: str) -> None:
    rows = re.findall(r"^\| (`.*?) \|", text_of("docs/how-to/choose-an-algorithm.md"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {entry.plugin.name for entry in registry().all(kind)} <= listed


def test_error_codes_of_troubleshooting_exist() -> None:
    codes = re.findall(r"^\| `([a-z-]+)` \|", text_of("docs/troubleshooting.md"), re.MULTILINE)
    assert codes
    assert not {code for code in codes if f"| `{code}` |" not in text_of("docs/reference/errors.md")}
