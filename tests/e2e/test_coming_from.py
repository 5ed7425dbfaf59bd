"""docs/how-to/from-verl.md and from-rllm.md: their scripts, their commands, and the rows of their tables."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from rllm.cli.main import main
from rllm.inspection.conversion import convert_keys
from rllm_core.plugins.registry import Registry

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
VERL = (GUIDES / "from-verl.md").read_text(encoding="utf-8")
RLLM = (GUIDES / "from-rllm.md").read_text(encoding="utf-8")


def block(guide: str, language: str) -> str:
    (text,) = re.findall(rf"^ *```{language}\n(.*?)^ *```$", guide, flags=re.MULTILINE | re.DOTALL)
    return str(text)


def commands(guide: str) -> list[str]:
    return re.findall(r"^    rllm (.*)$", guide, re.MULTILINE)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the scripts' files, on a machine that seems to have vLLM and flash-attn."""
    from textwrap import dedent

    import pyarrow
    import pyarrow.parquet

    (tmp_path / "data").mkdir()
    for name, first in (("train", 0), ("test", 100)):
        rows = [
            {"prompt": [{"role": "user", "content": f"{n}"}], "reward_model": {"ground_truth": f"{n}"}}
            for n in range(first, first + 9)
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data" / f"{name}.parquet")
    (tmp_path / "score.py").write_text(dedent(block(VERL, "python")))
    (tmp_path / "run_grpo.sh").write_text(block(VERL, "bash"))
    (tmp_path / "train_solver_judge.sh").write_text(block(RLLM, "bash"))
    monkeypatch.chdir(tmp_path)
    for module in ("checks", "attention"):
        monkeypatch.setattr(f"rllm_verl.{module}.find_spec", lambda name: name)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(("guide", "count"), [(VERL, 3), (RLLM, 2)], ids=["verl", "rllm"])
def test_commands_convert_and_result_passes_dry_run(
    directory: Path, guide: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    convert_it, *train = commands(guide)
    words, _, file = convert_it.partition(" > ")
    assert len(train) == count - 1
    assert main(shlex.split(words)) == 0
    (directory / file).write_text(capsys.readouterr().out)
    if guide is RLLM:
        tree = yaml.safe_load((directory / file).read_text())
        assert tree["rllm"]["algorithm"] == {"adv_estimator": "grpo", "eps_clip": 0.2, "eps_clip_high": 0.28}
    for command in train:
        words = [word for word in shlex.split(command) if word != "--dry-run"]
        assert main([*words, "--dry-run"]) == 0, capsys.readouterr().err


def test_converted_verl_reward_equals_verl(directory: Path) -> None:
    names: dict[str, Any] = {}
    exec((directory / "score.py").read_text(), names)
    assert names["compute_score"]("openai/gsm8k", "#### 42", "42", {}) == 1.0


def rows(guide: str, heading: str) -> list[tuple[str, str]]:
    section = guide.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE)


VALUES = {
    "data.train_files": "a.parquet",
    "data.val_files": "a.parquet",
    "custom_reward_function.path": "score.py",
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    "algorithm.filter_groups.enable": True,
    "--config-name": "ppo_megatron_trainer",
}


@pytest.mark.parametrize(("theirs", "ours"), rows(VERL, "## Converted keys"))
def test_every_row_of_the_table_matches_the_command(theirs: str, ours: str) -> None:
    key = re.findall(r"`([^`=]+)", theirs)[0].replace("*", "n")
    (target, *_) = re.findall(r"`([^`=]+)", ours)
    found = convert_keys({"actor_rollout_ref.rollout.name": "vllm", key: VALUES.get(key, 1)}, Registry.load(environ={}))
    assert found.renamed[key].startswith(target) or target == "the same of"
