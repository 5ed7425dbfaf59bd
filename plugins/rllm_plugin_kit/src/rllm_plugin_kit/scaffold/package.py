"""Filling templates, and writing what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template as Text

from rllm_core.contracts.plugin import API_VERSION
from rllm_core.errors import PluginError
from rllm_plugin_kit.scaffold.kinds import LOWEST_CORE, TEMPLATES
from rllm_plugin_kit.scaffold.naming import Names
from rllm_plugin_kit.scaffold.porting import Port

SUFFIX = ".template"
"""Suffix of template files, so that tools do not read them as Python."""
MODULE = "MODULE"
"""Placeholder for the module in paths of templates."""
DOT = "DOT_"
"""Placeholder for the dot of hidden directories in paths of templates. Packagers and tools skip hidden directories."""
_DIRECTORY = Path(__file__).parent / "templates"
_COMMON = "common"


def render(names: Names, kind: str, chosen: str, port: Port | None = None) -> dict[str, str]:
    """The files of a new package: path within it, with ``/``, to contents.

    Args:
        names: of the package.
        kind: one of `TEMPLATES`.
        chosen: what its README tells users to write in config: the plugin's name, qualified where it has to be.
        port: the function that the plugin calls. None for the template's own computation.
    """
    values = _values(names, kind, chosen, port)
    files = {
        path.replace(MODULE, names.module).replace(DOT, "."): Text(text).substitute(values)
        for directory in (_COMMON, *((kind,) if port is None else port.templates))
        for path, text in _templates(_DIRECTORY / directory)
    }
    if port is not None and port.source.file is not None:
        files[f"src/{names.module}/original.py"] = port.source.file.read_text(encoding="utf-8")
    return dict(sorted(files.items()))


def write(files: Mapping[str, str], directory: Path) -> None:
    """Write a package into an empty or a new directory.

    Raises:
        PluginError: the directory is not empty, or it cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        what = "is not empty" if directory.is_dir() else "is a file"
        raise PluginError(
            "directory-in-use",
            f"{directory} {what}.",
            "Choose a different name, or a different directory: --into DIRECTORY.",
        )
    try:
        for path, text in files.items():
            file = directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PluginError(
            "not-writable",
            f"{directory} cannot be written: {error}.",
            "Choose a different directory: --into DIRECTORY.",
        ) from error


def train_command(kind: str, chosen: str) -> str:
    """The command that trains with a plugin of this kind and name."""
    return Text(TEMPLATES[kind].train).substitute(chosen=chosen)


def _templates(directory: Path) -> Iterator[tuple[str, str]]:
    for file in directory.rglob(f"*{SUFFIX}"):
        yield file.relative_to(directory).as_posix().removesuffix(SUFFIX), file.read_text(encoding="utf-8")


def _values(names: Names, kind: str, chosen: str, port: Port | None) -> dict[str, str]:
    template = TEMPLATES[kind] if port is None else port.template
    # `my_estimator` contains its kind. `median` becomes `median_estimator`, which is no import or builtin.
    has_kind = names.plugin.endswith(f"_{kind}")
    identifier = names.plugin if has_kind else f"{names.plugin}_{kind}"
    class_name = "".join(word.capitalize() for word in identifier.split("_"))
    return {
        "distribution": names.distribution,
        "module": names.module,
        "name": names.plugin,
        "chosen": chosen,
        "kind": kind,
        "function": identifier,
        "class": class_name,
        "title": template.title,
        "summary": template.summary,
        "what": f"{template.summary[:1].lower()}{template.summary[1:]}",
        "dependencies": ", ".join(f'"{dependency}"' for dependency in template.dependencies),
        "train": train_command(kind, chosen),
        "config": Text(template.config).substitute(chosen=chosen),
        "api_version": str(API_VERSION),
        "extra": "",
        "lowest_core": LOWEST_CORE,
        **({} if port is None else port.values()),
    }
