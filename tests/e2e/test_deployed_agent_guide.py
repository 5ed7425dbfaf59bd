"""docs/how-to/deployed-agent.md, word for word, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values

pytestmark = pytest.mark.usefixtures("with_view")

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "deployed-agent.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    ((?:rllm|python|pip) .*)$", GUIDE, re.MULTILINE)
SHORT = ("data.max_response_length=2",)


@pytest.fixture
def home(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is home too, for the store and the token."""
    environ["HOME"] = str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def words_of(command: str) -> list[str]:
    program, *words = shlex.split(command.replace("./some-hf-folder", "tiny"))
    assert program == "rllm"
    return words


@pytest.mark.usefixtures("home")
def test_the_commands_of_the_guide_go_from_a_service_to_a_trained_model(
    start_forked_rllm: Callable[..., Any], rllm_here: Callable[..., Any], tmp_path: Path, environ: dict[str, str]
) -> None:
    install, serve, agent, export, compare, train, score = COMMANDS
    assert install.startswith("pip install")
    (service,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    # The port of the page may be taken here.
    serving = start_forked_rllm(*words_of(serve.replace("4000", "0")), *SHORT, "--announce", "at.json")
    while not (tmp_path / "at.json").exists():
        assert serving.poll() is None, serving.communicate()
        time.sleep(0.05)
    url = json.loads((tmp_path / "at.json").read_text())["url"]
    (tmp_path / "service.py").write_text(
        service.replace("deployed_session(task)", f"deployed_session(task, url={url!r})")
    )
    assert agent == "python service.py"
    try:
        subprocess.run([sys.executable, "service.py"], cwd=tmp_path, env=environ, check=True, timeout=120)
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.communicate(timeout=60)
    check_values(rllm_here(*words_of(export)).stdout, "8 attempts", "2 tasks", "sessions", ", 0 ")
    check_values(rllm_here(*words_of(compare)).stdout, "8 episodes", "sessions")
    trained = rllm_here(*words_of(train), *SHORT, "rllm.trainer.total_batches=2")
    assert trained.returncode == 0, trained.stderr
    scored = rllm_here(*words_of(score), "--json")
    assert scored.returncode == 0, scored.stderr
    (metrics,) = json.loads(scored.stdout)["environments"]
    assert metrics["now"][0]["rollouts"] == 8
    again = rllm_here(
        "train", "--stored", "scored", "--model", "tiny", *SHORT, "rllm.trainer.total_batches=1", "--overwrite"
    )
    assert again.returncode == 0, again.stderr
