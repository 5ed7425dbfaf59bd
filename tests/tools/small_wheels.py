"""Wheels of one module, as build tools write them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

ESTIMATOR = """
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.plugins import hookimpl

def raw(inputs, params):
    return Advantages(values=inputs.rewards)

@hookimpl
def rllm_estimators():
    return [EstimatorPlugin(name="{name}", summary="The reward itself.", load=lambda: raw)]
"""


def write_wheel(
    directory: Path,
    distribution: str,
    version: str,
    source: str,
    *,
    keywords: Sequence[str] = (),
    requires: Sequence[str] = (),
    metadata: str = "",
) -> Path:
    """Write a wheel whose module is a plugin with the package's name. Return its path.

    Args:
        directory: directory of the wheel. It is made if it is missing.
        distribution: name of the package. Its module has underscores instead.
        version: version of the package.
        source: source of the module.
        keywords: keywords of the package.
        requires: requirements of the package.
        metadata: more lines of its metadata.
    """
    module = distribution.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    fields = [f"Name: {distribution}", f"Version: {version}", "Summary: A plugin for tests."]
    fields += [f"Keywords: {','.join(keywords)}"] if keywords else []
    fields += [f"Requires-Dist: {requirement}" for requirement in requires]
    files = {
        f"{module}.py": source,
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", *fields]) + f"\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[rllm.plugins]\n{distribution} = {module}\n",
    }
    lines = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def write_estimator_wheel(
    directory: Path, distribution: str, version: str, name: str, *, requires: Sequence[str] = ("rllm-core>=0.1,<0.2",)
) -> Path:
    """Write a wheel with one estimator, which its keywords list."""
    keywords = ("rllm-plugin", f"rllm-estimator:{name}")
    source = ESTIMATOR.replace("{name}", name)
    return write_wheel(directory, distribution, version, source, keywords=keywords, requires=requires)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
