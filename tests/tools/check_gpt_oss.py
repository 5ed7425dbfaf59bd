"""Check tool calls of gpt-oss with its real vocabulary: ``python check_gpt_oss.py RANKS TEMPLATE``.

It is a program, because openai-harmony keeps the vocabulary of a process. RANKS is ``o200k_base.js`` of the npm package
js-tiktoken. The vocabulary file that openai-harmony otherwise downloads is written next to it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FIRST_MARK = 199998
MARKS = {
    0: "<|startoftext|>",
    1: "<|endoftext|>",
    4: "<|return|>",
    5: "<|constrain|>",
    7: "<|channel|>",
    8: "<|start|>",
}
MARKS |= {9: "<|end|>", 10: "<|message|>", 14: "<|call|>"}
STOPS = ("<|return|>", "<|call|>")


def main(ranks: Path, template: Path) -> None:
    """Print the calls of a response with reasoning, as `auto` reads them."""
    data = json.loads(ranks.read_text(encoding="utf-8").removeprefix("export default ").rstrip().rstrip(";"))
    vocabulary = ranks.with_name("o200k_base.tiktoken")
    vocabulary.write_text("".join(_lines(data["bpe_ranks"])), encoding="utf-8")
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(ranks.parent)

    from rllm_backend_kit.renderers import TOOLS, check_tool_calls
    from rllm_core.contracts.renderer import RendererSetup
    from rllm_core.rollout.options import TemplateParams
    from rllm_renderers.auto import make_auto

    tokenizer = _tokenizer(vocabulary, data["pat_str"], template.read_text(encoding="utf-8"))
    stops = frozenset(tokenizer.convert_tokens_to_ids([*STOPS]))
    renderer = make_auto(RendererSetup(name="./gpt-oss", tokenizer=tokenizer, stop_ids=stops), TemplateParams())
    check_tool_calls(renderer, "auto")
    call = (
        'I add.<|end|><|start|>assistant to=functions.add_numbers<|channel|>commentary<|message|>{"first": 1}<|call|>'
    )
    prompt = renderer.prompt([{"role": "user", "content": "Add."}], TOOLS)
    parsed = renderer.parse(prompt, tokenizer.encode(call, add_special_tokens=False), TOOLS)
    calls = [[each.name, dict(each.arguments)] for each in parsed.tool_calls]
    sys.stdout.write(json.dumps([parsed.reasoning, calls]))


def _lines(ranks: str) -> list[str]:
    """Return a line with each token in base64 and its rank."""
    lines = []
    for line in filter(None, ranks.split("\n")):
        _, first, *tokens = line.split(" ")
        lines += [f"{token} {int(first) + number}\n" for number, token in enumerate(tokens)]
    return lines


def _tokenizer(vocabulary: Path, pattern: str, template: str) -> Any:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    made = TikTokenConverter(vocab_file=str(vocabulary), pattern=pattern).converted()
    for number in range(max(MARKS) + 1):
        mark = MARKS.get(number, f"<|reserved_{FIRST_MARK + number}|>")
        made.add_special_tokens([AddedToken(mark, special=True, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|return|>", bos_token="<|startoftext|>")
    tokenizer.chat_template = template
    return tokenizer


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
