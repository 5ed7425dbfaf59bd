"""From the name of a distribution to the names inside it."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass

from rllm_core.errors import PluginError
from rllm_core.plugins.discovery import CORE, discover, normalize, read_index
from rllm_core.plugins.specs import NAME, NOT_NAMES

_DISTRIBUTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""The form in which names of distributions are compared, beginning with a letter as Python's names do."""
_PREFIX = "rllm_"
LONGEST = 64
"""Longer names make paths that some file systems do not support."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names in a new package."""

    distribution: str
    """Name for `pip install`: ``rllm-median``."""
    module: str
    """Name for Python's `import`: ``rllm_median``."""
    plugin: str
    """Name in config: ``median``."""


def names_for(distribution: str, kind: str) -> Names:
    """Return the names in a package `distribution` with one plugin of `kind`.

    Raises:
        PluginError: it is no name for a distribution, or its module would hide another.
    """
    if not _DISTRIBUTION.fullmatch(distribution):
        close = re.sub(r"[^a-z0-9]+", "-", distribution.lower()).strip("-")
        raise PluginError(
            "bad-package-name",
            f"{distribution!r} is not a name for a package.",
            "Use lower-case letters, digits and hyphens, beginning with a letter"
            + (f": {close}." if _DISTRIBUTION.fullmatch(close) else ", such as my-estimator."),
        )
    if len(distribution) > LONGEST:
        raise PluginError(
            "bad-package-name", f"The name has {len(distribution)} letters.", f"Choose one of at most {LONGEST}."
        )
    if distribution == CORE or distribution in read_index():
        raise PluginError(
            "bad-package-name",
            f"{distribution} is one of rllm's own packages.",
            f"Choose a different name: my-{distribution}.",
        )
    module = distribution.replace("-", "_")
    _check_module(distribution, module)
    short = module.removeprefix(_PREFIX)
    return Names(distribution=distribution, module=module, plugin=short if _usable(short, kind) else module)


def _usable(name: str, kind: str) -> bool:
    return bool(NAME.fullmatch(name)) and name not in NOT_NAMES and (kind, name) != ("environment", "custom")


def _check_module(distribution: str, module: str) -> None:
    hint = f"Choose a different name: rllm-{distribution}, or my-{distribution}."
    if keyword.iskeyword(module) or not _usable(module, "environment"):
        raise PluginError(
            "bad-package-name", f"{distribution!r} means something else in Python or in config files.", hint
        )
    if module in sys.stdlib_module_names:
        raise PluginError(
            "bad-package-name", f"A package named {distribution!r} would hide Python's own module {module}.", hint
        )
    found = importlib.util.find_spec(module)
    # A directory without code, such as an earlier rollout in the working directory, is found too, and has no origin.
    if found is None or found.origin is None or _is_installed_plugin(distribution):
        return
    raise PluginError(
        "bad-package-name",
        f"A package named {distribution!r} would hide the module {module} that is installed here.",
        hint,
    )


def _is_installed_plugin(distribution: str) -> bool:
    """True if an installed plugin has this package name. You may write it again in another directory."""
    found = discover(environ={})
    return distribution in {normalize(candidate.distribution) for candidate in found.candidates}
