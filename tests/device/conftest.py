"""The simulated accelerator of `pretend_device`, as an installed package that adds a device to torch."""

from __future__ import annotations

from pathlib import Path

import pretend_device
import pytest
from written_distribution import write_distribution

pretend_device.register()
TOOLS = Path(pretend_device.__file__).parent


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device's name, which `model.device` and child processes know."""
    site = tmp_path / "site"
    write_distribution(site, "torch-pretend", "from pretend_device import register\n", points=POINTS)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}:{TOOLS}")
    monkeypatch.chdir(tmp_path)
    return pretend_device.NAME


POINTS = "[torch.backends]\npretend = {module}:register\n"
