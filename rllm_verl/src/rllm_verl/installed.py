"""The installed verl version and the path of its configuration. verl is not imported, because that takes seconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rllm_backend_kit.machine import installed_version
from rllm_core.errors import ConfigError

NEEDED = "0.9.1"
"""The version that the backend supports: its classes, configuration and servers."""
_INSTALL = f"pip install 'verl=={NEEDED}'"


def version() -> str:
    """Return the installed verl version.

    Raises:
        ConfigError: verl is not installed.
    """
    found = installed_version("verl")
    if found is None or find_spec("verl") is None:
        raise ConfigError("missing-package", f"Backend verl needs verl {NEEDED}, but verl is not installed.", _INSTALL)
    return found


def require_verl() -> None:
    """Raise ConfigError unless the supported verl version is installed."""
    if (found := version()) != NEEDED:
        raise ConfigError(
            "wrong-version", f"Backend verl needs verl {NEEDED}, but verl {found} is installed.", _INSTALL
        )


def config_search_path() -> tuple[str, ...]:
    """Return Hydra's search path for verl's own YAML files. Empty if verl is not installed.

    It is the directory of ``pkg://verl.trainer.config``. With that name, Hydra would import verl.
    """
    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return ()
    return tuple(f"file://{Path(place, 'trainer', 'config')}" for place in spec.submodule_search_locations)


def config_yaml() -> Path:
    """Return the path of the backend's YAML file, and register rLLM's resolver ``${mul:A,B}`` for configs that use it.

    Raises:
        ConfigError: verl is missing or has a different version. The file needs verl's YAML files.
    """
    from omegaconf import OmegaConf

    require_verl()
    OmegaConf.register_new_resolver("mul", lambda one, other: int(one) * int(other), replace=True)
    return Path(__file__).parent / "conf" / "rllm" / "backend" / "verl.yaml"
