"""A tiny model with random weights, with a chat template that shows tools."""

from __future__ import annotations

from pathlib import Path

MARKS = ("<tool_call>", "</tool_call>", "{", "}", '"', "[", "]", "_", "/")
TEMPLATE = """
{%- if tools %}<system>{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}<end>{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}{{ message.content }}{%- for call in message.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor -%}<end>
{%- elif message.role == 'system' -%}<system>{{ message.content }}<end>
{%- else -%}{{ message.content }}{%- endif -%}
{%- endfor -%}
"""


def save_tool_model(directory: Path) -> None:
    """Write it into an existing directory in the format of transformers."""
    from tokenizers import AddedToken

    from rllm_local.tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in MARKS])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    model = build_model(len(tokenizer), seed=3)
    model.config.max_position_embeddings = 2048  # The schemas of tools are long in its tokens.
    model.save_pretrained(directory)
