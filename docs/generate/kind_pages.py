"""One reference page per kind of plugin, made from contracts, hooks, records and contract tests.

``python docs/generate/kind_pages.py`` writes them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Template as Text
from typing import Any

from config_reference import DISTRIBUTIONS
from contract_source import Described, Field, classes_of, others_of
from page_text import cell, doc_cell, doc_text, one_line, table

from rllm.inspection.describe import list_options
from rllm.inspection.info import in_words, list_facts
from rllm_core.contracts import plugin as common
from rllm_core.contracts.chosen import Registered
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS
from rllm_plugin_kit.scaffold.kinds import TEMPLATES

DIRECTORY = Path(__file__).parents[1] / "reference"
MADE = "<!-- Made by `make docs`; do not edit. -->\n"
LONG_FACTS = frozenset(
    {"config yaml", "config search path", "shared keys", "derived keys", "column sections", "recipes"}
    | {"unused keys", "unused keys by profile", "config keys", "training keys", "timeout"}
    | {"model key", "learning rate key", "lora rank key", "minibatches key"}
)
"""Facts that the pages omit. `rllm plugins info` prints them."""
IN_TABLE = {"estimator": ("level", "scope", "default loss"), "loss": ("has ratio",), "rejection": ("updates waited",)}
IN_TABLE |= {"reward": ("scope",)}
"""Facts that are columns of the table of a kind, because most of its plugins have them."""
EMPTY = {"field(default_factory=dict)": "{}", "field(default_factory=list)": "[]"}
EMPTY |= {"field(default=None, metadata=GIVES_FACT)": "None"}
"""How people write these defaults."""
ALSO = {"backend": ("weight_comparison",)}
"""Further modules of contracts whose classes are on the page of a kind."""
SAYS_NO = ("no", "nothing", "")


def pages(registry: Registry) -> dict[str, str]:
    """Contents by file name: a page for every kind, and the page that lists them."""
    return {f"{kind}.md": kind_page(registry, kind) for kind in KINDS} | {"kinds.md": _list_of_kinds(registry)}


def kind_page(registry: Registry, kind: str) -> str:
    """The page of one kind."""
    module = import_module(f"rllm_core.contracts.{kind}")
    parts = [
        f"# The kind `{kind}`\n",
        MADE,
        doc_text(module.__doc__),
        "[All kinds](kinds.md)\n",
        *_choosing(registry, kind),
        *_writing(kind),
        *_contract(kind),
        *_testing(kind),
    ]
    return "\n".join(parts)


def _list_of_kinds(registry: Registry) -> str:
    rows = []
    for kind in KINDS:
        module = import_module(f"rllm_core.contracts.{kind}")
        about = doc_cell(module.__doc__.splitlines()[0])
        names = ", ".join(f"`{entry.name}`" for entry in _ours(registry, kind))
        rows.append((f"[`{kind}`]({kind}.md)", about, cell(_chosen_by(kind)), names))
    heading = ("kind", "description", "chosen by", "comes with rllm")
    introduction = (
        "Every part that you choose by name is a plugin of one of these kinds. Each kind has a contract in "
        "`rllm_core.contracts`, a hook in `rllm_core.plugins.specs`, a "
        "[contract test](testing.md) and a template of `rllm plugins new`. See [Write a plugin](../how-to/plugin.md).\n"
    )
    shared = [
        "## Fields of every plugin spec\n",
        "The hook of a kind returns plugin specs. The page of a kind lists its further fields.\n",
        _fields(_shared_fields()),
    ]
    return "\n".join(["# Kinds of plugins\n", MADE, introduction, table(heading, rows), *shared])


def _shared_fields() -> list[Field]:
    return [field for field in classes_of(common)["Plugin"].fields if field.name != "kind"]


def _chosen_by(kind: str) -> str:
    """The sentence of the record's docstring that says where the name goes."""
    sentences = re.split(r"(?<=\.)\s+", " ".join((KINDS[kind].record.__doc__ or "").replace("``", "`").split()))
    (sentence,) = [each for each in sentences if each.startswith(("Users choose it", "Users place it"))]
    return re.sub(r"^Users (choose|place) it with ", "", sentence).rstrip(".")


def _ours(registry: Registry, kind: str) -> list[Registered[Any]]:
    return [entry for entry in registry.all(kind) if entry.distribution in DISTRIBUTIONS]


def _choosing(registry: Registry, kind: str) -> Iterator[str]:
    yield "## Choose one\n"
    about, _ = _about_and_example(kind)
    yield doc_text(re.sub(r"^A plugin spec that offers [^.]*\.\s+", "", about))
    entries = _ours(registry, kind)
    if not entries:
        yield "None comes with rllm.\n"
        return
    whole: dict[str, list[tuple[str, ...]]] = {}
    sections = {entry.name: list(_details(entry, whole)) for entry in entries}
    columns = IN_TABLE.get(kind, ())
    rows = [
        (
            *(_name(entry, sections), entry.distribution, cell(entry.plugin.summary)),
            *(in_words(list_facts(entry.plugin).get(column, [("by its options",)])) for column in columns),
        )
        for entry in entries
    ]
    yield table(("name", "package", "description", *columns), rows)
    for name, section in sections.items():
        if section:
            yield f"### `{name}`\n"
            yield from section


def _name(entry: Registered[Any], sections: dict[str, list[str]]) -> str:
    return f"[`{entry.name}`](#{entry.name})" if sections[entry.name] else f"`{entry.name}`"


def _details(entry: Registered[Any], whole: dict[str, list[tuple[str, ...]]]) -> Iterator[str]:
    """What a plugin has besides its summary. ``whole`` gets its options, unless they are nearly an earlier plugin's."""
    plugin = entry.plugin
    if plugin.deprecated:
        yield f"Deprecated: {plugin.deprecated}\n"
    elsewhere = LONG_FACTS.union(IN_TABLE.get(entry.kind, ()))
    said = {name: in_words(rows) for name, rows in list_facts(plugin).items() if name not in elsewhere}
    facts = {name: words for name, words in said.items() if words not in SAYS_NO}
    if facts:
        yield "".join(f"- `{name}`: {one_line(words)}\n" for name, words in facts.items())
    if entry.kind == "backend":
        yield f"Its keys are in [Config keys](config.md#backend-{entry.name}).\n"
        return
    options: list[tuple[str, ...]] = [
        (f"`{name}`", cell(words), default if default == "required" else f"`{cell(default)}`", cell(meaning))
        for name, words, default, meaning in list_options(plugin.params)
    ]
    shared = {name: [row for row in rows if row in options] for name, rows in whole.items() if len(rows) > 1}
    first = max(shared, key=lambda name: len(shared[name]), default="")
    lacks = [row[0] for row in whole.get(first, []) if row not in options]
    if first and len(lacks) <= 1 < len(shared[first]):
        options = [row for row in options if row not in shared[first]]
        without = f" without {lacks[0]}" if lacks else ""
        yield f"It has the options of [`{first}`](#{first}){without}{', and:' if options else '.'}\n"
    else:
        whole[entry.name] = options
    if options:
        yield table(("option", "type", "default", "meaning"), options)


def _writing(kind: str) -> Iterator[str]:
    yield "## Write one\n"
    template = TEMPLATES[kind]
    chosen = f"my_{kind}"
    train = Text(template.train).substitute(chosen=chosen)
    config = Text(template.config).substitute(chosen=chosen)
    yield "Write a working package, [install](../how-to/plugin.md) it, and run it by name:\n"
    yield f"    rllm plugins new my-{kind} --kind {kind}\n    {train}\n"
    yield f"In a config file:\n\n```yaml\n{config}\n```\n"
    _, example = _about_and_example(kind)
    yield f"The hook is `{KINDS[kind].hook}`. {doc_text(example)}"


def _about_and_example(kind: str) -> tuple[str, str]:
    """Return the docstring of a kind's spec class without its example, and the example with its introduction."""
    text, _, code = (inspect.getdoc(KINDS[kind].record) or "").partition("::\n")
    about, _, introduction = text.rpartition("\n\n")
    return about, f"{introduction}::\n{code}"


def _contract(kind: str) -> Iterator[str]:
    module = import_module(f"rllm_core.contracts.{kind}")
    classes = classes_of(module)
    for name in ALSO.get(kind, ()):
        classes |= classes_of(import_module(f"rllm_core.contracts.{name}"))
    record = classes.pop(KINDS[kind].record.__name__)
    yield "## Contract\n"
    load = next(field for field in record.fields if field.name == "load")
    implemented = [name for name in re.findall(r"\w+", load.type) if name in classes][-1:]
    for described in (*map(classes.pop, implemented), *classes.values()):
        yield from _class(described)
    yield f"### `{record.name}`\n"
    yield "The plugin spec, with the [fields of every plugin spec](kinds.md#fields-of-every-plugin-spec) and:\n"
    yield _fields([field for field in record.fields if field.name != "kind"])
    constants, functions = others_of(module)
    if constants:
        yield "### Constants\n"
        yield _fields(constants)
    for function in functions:
        yield f"### `{function.signature}`\n"
        yield doc_text(function.doc)


def _class(described: Described) -> Iterator[str]:
    yield f"### `{described.name}`\n"
    bases = [base for base in described.bases if base not in ("ABC", "Protocol")]
    inherited = f" It has everything that `{'` and `'.join(bases)}` has." if bases else ""
    yield doc_text(described.doc + inherited)
    if described.fields:
        yield _fields(described.fields)
    if described.methods:
        rows = [(f"`{cell(method.signature)}`", doc_cell(method.doc)) for method in described.methods]
        yield table(("method", "meaning"), rows)


def _fields(fields: list[Field] | tuple[Field, ...]) -> str:
    rows = [
        (
            f"`{field.name}`",
            f"`{cell(field.type)}`" if field.type else "",
            f"`{cell(EMPTY.get(field.default, field.default))}`" if field.default else "",
            doc_cell(field.doc),
        )
        for field in fields
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _testing(kind: str) -> Iterator[str]:
    module = import_module(f"rllm_plugin_kit.{kind}")
    described = classes_of(module)[f"{kind.capitalize()}Contract"]
    yield "## Contract test\n"
    yield f"Subclass `{described.name}` as in [Contract tests](testing.md). " + doc_text(
        re.sub(r"^Contract of every [^.]*\.\s*", "", described.doc)
    )
    attributes = [field for field in described.fields if field.doc]
    overridden = [method for method in described.methods if method.doc and _is_for_authors(method.signature)]
    if attributes or overridden:
        yield "Your subclass can also set:\n"
        rows = [(f"`{field.name}`", f"`{field.default}`", doc_cell(field.doc)) for field in attributes]
        rows += [(f"`{method.signature.partition(' ->')[0]}`", "", doc_cell(method.doc)) for method in overridden]
        yield table(("attribute", "default", "meaning"), rows)


def _is_for_authors(signature: str) -> bool:
    return not signature.startswith(("test_", "pytest_", "session(", "start("))


if __name__ == "__main__":
    for name, text in pages(Registry.load(allow=DISTRIBUTIONS, environ={})).items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
