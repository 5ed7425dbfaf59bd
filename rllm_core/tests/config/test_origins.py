"""What a run's folder keeps of where its values came from."""

from __future__ import annotations

from pathlib import Path

from rllm_core.config.layers import Tier
from rllm_core.config.origins import save_origins, saved_by_user, with_saved_origins
from rllm_core.config.save import FILE_NAME, save_config

TIERS = {"seed": Tier.SAVED, "lr": Tier.SAVED, "n": Tier.COMMAND_LINE}


def test_what_a_user_set_at_an_earlier_start_is_known(tmp_path: Path) -> None:
    save_config({"seed": 1}, tmp_path)
    save_origins({"seed": "command line", "lr": "backend verl"}, {"seed", "n"}, tmp_path)
    config = tmp_path / FILE_NAME
    assert saved_by_user(TIERS, config) == {"seed"}  # n is set anew
    assert with_saved_origins({"seed": str(config), "n": "mine.yaml"}, config) == {
        "seed": "command line",
        "n": "mine.yaml",
    }


def test_a_value_that_came_through_another_key_keeps_its_origin(tmp_path: Path) -> None:
    save_config({"seed": 1}, tmp_path)
    save_origins({"seed": "backend verl, by trainer.seed"}, (), tmp_path)
    config = tmp_path / FILE_NAME
    for origin in (f"{config}", f"{config}, by trainer.seed"):
        assert with_saved_origins({"seed": origin}, config) == {"seed": "backend verl, by trainer.seed"}


def test_of_an_edited_config_nothing_is_known(tmp_path: Path) -> None:
    save_config({"seed": 1}, tmp_path)
    save_origins({"seed": "command line"}, {"seed"}, tmp_path)
    save_config({"seed": 2}, tmp_path)
    assert saved_by_user(TIERS, tmp_path / FILE_NAME) == frozenset()
    assert saved_by_user(TIERS, tmp_path / "elsewhere" / FILE_NAME) == frozenset()
