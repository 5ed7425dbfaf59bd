"""Choose the dataset plugin that reads a file, if the user gives a file instead of a dataset's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_core.contracts.chosen import FAMILY
from rllm_core.errors import ConfigError
from rllm_core.plugins.discovery import indexed_summaries, read_index
from rllm_core.plugins.registry import Registry


def dataset_of_file(registry: Registry, choice: str, where: str) -> str | dict[str, Any]:
    """Return the dataset that reads the file `choice`, with the file as its option ``path``. Return a name unchanged.

    Raises:
        ConfigError: `choice` is a path, and no installed dataset reads it, or several do. `where` is the config key.
    """
    installed = registry.all("dataset")
    names = {name for entry in installed for name in (entry.name, entry.qualified_name)}
    suffix = Path(choice).suffix.lower()
    if FAMILY in choice or choice in names or not (suffix or Path(choice).expanduser().exists()):
        return choice
    reading = [entry.qualified_name for entry in installed if suffix in entry.plugin.suffixes]
    if len(reading) == 1:
        return {"name": reading[0], "path": choice}
    elsewhere = (name for name, entry in read_index().items() if suffix in entry.endings)
    home = None if reading else next(elsewhere, None)
    if home is not None:
        raise ConfigError(
            "plugin-not-installed",
            f"{where} is {choice!r}: {home} reads files with the suffix {suffix}.",
            f"pip install {home}",
        )
    known = ", ".join(sorted({each for entry in installed for each in entry.plugin.suffixes}))
    # If the user chooses one that is not installed, the error names the package.
    known_names = sorted({*(entry.name for entry in installed), *indexed_summaries("dataset")})
    raise ConfigError(
        "unknown-file-type",
        f"{where} is {choice!r}: {' and '.join(reading) or 'no installed dataset'} would read it by its suffix.",
        f"Files with the suffix {known} need no name. Write others as {{name: NAME, path: {choice}}}. "
        f"Names are {', '.join(known_names)}.",
    )
