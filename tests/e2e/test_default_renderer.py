"""The default renderer, and the refusal of a chat template that it cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed

from rllm_local import tiny

CHANNELS = """{% for message in messages %}{% if message.role == "assistant" %}<a>final {{ message.content }}</s>\
{% else %}<u>{{ message.content }}{% endif %}{% endfor %}<a>"""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "auto"),
        (("rllm.renderer.control_tokens=plain",), "auto"),
        (("rllm.renderer=template",), "template"),
        (("rllm.accumulate_reasoning=true", "rllm.unused_keys=warn"), "template"),
    ],
)
def test_dry_run_shows_the_chosen_renderer(rllm_here: Any, words: tuple[str, ...], name: str) -> None:
    done = rllm_here("train", "guess", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["renderer"]]
    assert row[1] == name


@pytest.mark.parametrize("renderer", [(), ("rllm.renderer=template",)])
def test_unreadable_template_is_refused_in_dry_run(rllm_here: Any, tmp_path: Path, renderer: tuple[str, ...]) -> None:
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = CHANNELS
    directory = tmp_path / "channels"
    tokenizer.save_pretrained(directory)
    tiny.build_model(len(tokenizer), 0).save_pretrained(directory)
    done = rllm_here("train", "guess", "--model", str(directory), *renderer, "--dry-run")
    assert done.returncode != 0
    check_printed(done.stderr, "unsupported-chat-template", "'template'", "rllm.renderer=")
