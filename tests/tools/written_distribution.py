"""A module with a dist-info beside it: all that an installed package is, as far as entry points go."""

from __future__ import annotations

from pathlib import Path


def write_distribution(
    directory: Path, distribution: str, source: str, *, points: str = "[rllm.plugins]\n{distribution} = {module}\n"
) -> None:
    """Write one, of version 1.0, whose module is its name with underscores.

    Args:
        directory: made where it is missing; to be put on the path that modules come from.
        distribution: its name, such as ``my-envs``.
        source: of the module.
        points: the entry points, with places for `distribution` and `module`.
    """
    module = distribution.replace("-", "_")
    info = directory / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (directory / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points.format(distribution=distribution, module=module))
