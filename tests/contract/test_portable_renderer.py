"""A renderer that a backend has made is loaded by another process, and gives the same tokens there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rllm_backend_kit.model_files import stop_ids
from rllm_backend_kit.portable_renderer import FILE, load_renderer, save_renderer
from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.chosen import Chosen
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins import resolve
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.schema.run_config import RunConfig
from rllm_local.tiny import build_tokenizer

SAID = [{"role": "user", "content": "one plus one? ünï — 1"}]
ELSEWHERE = """
import json, sys
from pathlib import Path
from rllm_backend_kit.portable_renderer import load_renderer
renderer = load_renderer(Path(sys.argv[1]))
print(json.dumps([renderer.prompt(json.loads(sys.argv[2])).tolist(), sorted(renderer.stop_ids)]))
"""


def made(chosen: Chosen[Any] | None = None, **setup: Any) -> Renderer:
    tokenizer = build_tokenizer()
    given = {"name": "tiny", "tokenizer": tokenizer, "stop_ids": stop_ids(tokenizer, None)} | setup
    run = RunContext(config=RunConfig(), backend_config=None, seed=0, total_steps=1, renderer=chosen)
    return make_renderer(run, RendererSetup(**given))


def chosen(name: str) -> Chosen[Any]:
    return Chosen(registered=resolve("renderer", name), params=NoParams())


def test_another_process_renders_the_same_tokens(tmp_path: Path) -> None:
    renderer = made()
    save_renderer(renderer, tmp_path)
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path), json.dumps(SAID)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == [renderer.prompt(SAID).tolist(), sorted(renderer.stop_ids)]


@pytest.mark.parametrize("name", ["rllm-core/template", "rllm-renderers/auto"])
def test_a_renderer_chosen_by_name_is_found_by_its_qualified_name(tmp_path: Path, name: str) -> None:
    renderer = made(chosen(name))
    save_renderer(renderer, tmp_path)
    assert json.loads((tmp_path / FILE).read_text())["plugin"] == name
    assert load_renderer(tmp_path).prompt(SAID).tolist() == renderer.prompt(SAID).tolist()


def test_a_plugin_that_is_not_installed_is_named(tmp_path: Path) -> None:
    save_renderer(made(), tmp_path)
    form = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(form | {"plugin": "rllm-nowhere/gone"}))
    with pytest.raises(PluginError, match="gone"):
        load_renderer(tmp_path)


def test_a_tokenizer_that_changes_on_its_way_is_refused(tmp_path: Path) -> None:
    save_renderer(made(), tmp_path)
    form = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(form | {"sample": "0" * 32}))
    with pytest.raises(ConfigError, match="gives other tokens once it is saved and loaded"):
        load_renderer(tmp_path)


def test_a_renderer_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    renderer = TemplateRenderer(build_tokenizer(), [0])
    with pytest.raises(ConfigError, match="what made it is not known"):
        save_renderer(renderer, tmp_path)
