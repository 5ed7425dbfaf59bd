"""The resolved configuration in a run's folder: ``config.yaml``.

It holds every value of the run, interpolations resolved, and can be given back as ``--config`` for the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rllm_core.config.layers import layer_from_file
from rllm_core.config.merge import merge_layers
from rllm_core.config.resolve import escape, resolve

FILE_NAME = "config.yaml"
UNICODE_LINE_BREAKS = "\x85\u2028\u2029"


def save_config(tree: Mapping[str, Any], folder: str | Path) -> Path:
    """Write a resolved tree into an existing folder, and return the file. Never leaves half a file behind."""
    file = Path(folder) / FILE_NAME
    written = file.with_suffix(".yaml.tmp")
    written.write_text(as_yaml(tree), encoding="utf-8")
    written.replace(file)
    return file


def as_yaml(tree: Mapping[str, Any]) -> str:
    """A resolved tree as the text of a configuration file."""
    import yaml

    text: str = yaml.dump(escape(dict(tree)), Dumper=_yaml_dumper(), allow_unicode=True, sort_keys=False)
    return text


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read the tree that `save_config` wrote."""
    return resolve(merge_layers([layer_from_file(Path(folder) / FILE_NAME)], []))


@cache
def _yaml_dumper() -> Any:
    # OmegaConf's own writer quotes what its reader would take for something else, such as the text "1e-4".
    from omegaconf._utils import get_omega_conf_dumper

    class Dumper(get_omega_conf_dumper()):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True  # the same list in two places is written twice, not as `&id001` and `*id001`

        def represent_text(self, text: str) -> Any:
            if any(letter in text for letter in UNICODE_LINE_BREAKS):  # in other styles they come back as spaces
                return self.represent_scalar("tag:yaml.org,2002:str", text, style='"')
            return self.str_representer(self, text)

    Dumper.add_representer(str, Dumper.represent_text)
    return Dumper
