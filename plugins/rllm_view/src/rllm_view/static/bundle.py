"""The modules of the pages as one script: a file that was opened from a disk may import none.

Each becomes a function that gives what it exports, in an order in which whatever is used stands above.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(import|export)\b", re.MULTILINE)


def bundle(modules: Mapping[str, str], first: str) -> str:
    """One script.

    Args:
        modules: source by name, without ``.js``.
        first: the one that starts.

    Raises:
        ValueError: a module imports or exports in a way that this does not know, or the modules are a circle.
    """
    done: list[str] = []
    texts: list[str] = []

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"{' → '.join([*above, name])} is a circle")
        if name in done:
            return
        for _, used in _IMPORT.findall(modules[name]):
            add(used, (*above, name))
        done.append(name)
        texts.append(_as_function(name, modules[name]))

    add(first, ())
    return f'"use strict";\n{"".join(texts)}'


def _as_function(name: str, source: str) -> str:
    exported = ", ".join(found for _, found in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const {\1} = module_\2;\n", source))
    if odd := _OTHER.search(body):
        raise ValueError(f"{name}.js: a line begins with {odd[1]!r} that is neither a list of names nor a declaration")
    return f"const module_{name} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"
