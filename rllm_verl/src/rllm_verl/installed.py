"""Which verl there is, and where its configuration lies. verl itself is not imported: that takes seconds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version as version_of
from importlib.util import find_spec
from pathlib import Path

from rllm_core.errors import ConfigError

NEEDED = "0.9.1"
"""The version whose classes, configuration and servers the backend is written for."""
_INSTALL = f"pip install 'verl=={NEEDED}'"


def version() -> str:
    """The version of verl that is installed.

    Raises:
        ConfigError: none is.
    """
    try:
        found = version_of("verl")
    except PackageNotFoundError:
        found = None
    if found is None or find_spec("verl") is None:
        raise ConfigError(
            "missing-package", f"Backend verl needs verl {NEEDED}, and verl is not installed.", _INSTALL
        ) from None
    return found


def require_verl() -> None:
    """Raise ConfigError unless the version that is needed is installed."""
    if (found := version()) != NEEDED:
        raise ConfigError(
            "wrong-version", f"Backend verl needs verl {NEEDED}, and verl {found} is installed.", _INSTALL
        )


def config_search_path() -> tuple[str, ...]:
    """Where Hydra finds verl's own YAML files; nowhere when verl is missing.

    The folder is the one that ``pkg://verl.trainer.config`` names. Looked up by that name, Hydra would import verl.
    """
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return ()
    return tuple(f"file://{Path(place, 'trainer', 'config')}" for place in spec.submodule_search_locations)


def config_yaml() -> Path:
    """The backend's YAML file. Configurations above it may use rLLM's resolver ``${mul:A,B}``, as rLLM's own file does.

    Raises:
        ConfigError: verl, whose YAML files it composes, is missing or of another version.
    """
    from omegaconf import OmegaConf

    require_verl()
    OmegaConf.register_new_resolver("mul", lambda one, other: int(one) * int(other), replace=True)
    return Path(__file__).parent / "conf" / "rllm" / "backend" / "verl.yaml"
