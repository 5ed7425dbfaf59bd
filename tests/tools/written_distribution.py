"""A module with a dist-info next to it, which is an installed package for entry points."""

from __future__ import annotations

from pathlib import Path


def write_distribution(
    directory: Path, distribution: str, source: str, *, points: str = "[rllm.plugins]\n{distribution} = {module}\n"
) -> None:
    """Write a distribution of version 1.0. Its module is its name with underscores.

    Args:
        directory: directory for the path of modules. It is made if it is missing.
        distribution: its name, such as ``my-envs``.
        source: source of the module.
        points: the entry points, with places for `distribution` and `module`.
    """
    module = distribution.replace("-", "_")
    info = directory / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (directory / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points.format(distribution=distribution, module=module))
