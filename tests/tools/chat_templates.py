"""The chat templates that TRL ships, each with a tokenizer of bytes and of the template's own marks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import peers

from rllm_core.contracts.renderer import RendererSetup
from rllm_core.rollout.template_renderer import TemplateRenderer

STOPS = (
    *("<|im_end|>", "<|eot_id|>", "<|END_OF_TURN_TOKEN|>", "<|call|>", "<|end|>", "<end_of_turn>", "<turn|>"),
    *("<|user|>", "<|observation|>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>"),
    "<|tool_response>",
)
"""The tokens that end responses, in all known families."""
OTHER_MARKS = (
    *("<|endoftext|>", "<|im_start|>", "[gMASK]", "<sop>", "<s>", "<bos>", "<eos>", "/nothink", "<think>", "</think>"),
    *("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|python_tag|>", "<|eom_id|>"),
    *("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<|think|>", "<|image>", "<|image|>", "<image|>"),
)
"""Special tokens that renderers need although the template does not write them."""
STARTS = {
    "<\uff5cUser\uff5c>": "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<|start_header_id|>": "<|begin_of_text|>",
    "<start_of_turn>": "<bos>",
    "<|turn>": "<bos>",
    "": "<s>",
}
"""Mark of a family -> the token that starts its texts."""
MERGES = (("\u010a", "\u010a"), ("\u0120", "T"), (".", "\u010a"))
"""Pairs that are one token, as in real vocabularies: two line breaks, a space and a letter, and a full stop and a line
break. So tokens can cross the end of a prompt."""
MARKS = re.compile(r"<\|?[\w\uff5c▁/]+\|?>|<\uff5c[^>]*\uff5c>|</?\w+>|<\w+\|>")


def templates() -> list[Path]:
    """Return a file for each family and version. Empty if TRL is not installed."""
    try:
        found = sorted((peers.directory_of("trl") / "chat_templates").glob("*.jinja"))
    except peers.PeerMissingError:
        return []
    return [path for path in found if not path.stem.endswith("_training")]


def setup_of(path: Path) -> RendererSetup:
    """A model with this template. Its vocabulary has bytes and marks, so that any text survives."""
    tokenizer = _tokenizer(path.read_text(encoding="utf-8"))
    stops = tokenizer.convert_tokens_to_ids([*STOPS])
    return RendererSetup(name=f"./{path.stem}", tokenizer=tokenizer, stop_ids=frozenset(stops))


def renderer_of(path: Path) -> TemplateRenderer:
    """The renderer ``template`` of a model with this template."""
    setup = setup_of(path)
    return TemplateRenderer(setup.tokenizer, setup.stop_ids)


def _tokenizer(template: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: number for number, each in enumerate((*bytes_, *map("".join, MERGES)))}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[*MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = dict.fromkeys((*MARKS.findall(template), *STOPS, *OTHER_MARKS))
    special = ("<|", "<\uff5c", "[", "<s", "<b", "</s>")
    tokens = [
        AddedToken(mark, special=mark.startswith(special) or mark.endswith("|>") or mark in STOPS, normalized=False)
        for mark in marks
    ]
    tokenizer.add_tokens(tokens)
    end = next((stop for stop in STOPS if stop in template), "<|im_end|>")
    start = next(start for mark, start in STARTS.items() if mark in template)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=start)
    wrapped.chat_template = template
    return wrapped
