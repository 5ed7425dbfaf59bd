#!/usr/bin/env bash
# Left truncation turns the assistant mask of a chat template into zeros.
#
# Versions: transformers 5.10.4, tokenizers 0.22.2.
#
# Expected: `apply_chat_template(return_assistant_tokens_mask=True, truncation=True)` cuts the token ids and the mask
# alike. Each assistant token that remains has mask 1. Right truncation does exactly this.
#
# Observed: with `truncation_side="left"` all of the mask is 0, also for assistant turns that are complete. The loop
# over the assistant's spans stops at the first span that begins in the removed part, and later spans are never marked.
# No warning.
#
# Output:
#   all     <u>qq<e><a>first<e><u>rr<e><a>second<e>  trained: first<e>second<e>
#   right   <u>qq<e><a>first<e><u>rr<e><a>           trained: first<e>
#   left    rst<e><u>rr<e><a>second<e>               trained: nothing
#
# Why it matters: left truncation is usual for long agent conversations, because the end has the answer. Each row that
# is too long then has no loss, so the run trains on its short rows only.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 tokenizers==0.22.2 jinja2==3.1.6
venv/bin/python - <<'END'
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

bytes_only = Tokenizer(
    models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
)
bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bytes_only.add_special_tokens(["<u>", "<a>", "<e>"])
template = (
    "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}<e>"
    "{% else %}<a>{% generation %}{{ m.content }}<e>{% endgeneration %}{% endif %}{% endfor %}"
)
conversation = [
    {"role": "user", "content": "qq"},
    {"role": "assistant", "content": "first"},
    {"role": "user", "content": "rr"},
    {"role": "assistant", "content": "second"},
]


def find_trained(name: str, side: str, **limits: object) -> str:
    """Print a row, and return its text with mask 1."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<e>", truncation_side=side)
    row = tokenizer.apply_chat_template(
        conversation, chat_template=template, return_dict=True, return_assistant_tokens_mask=True, **limits
    )
    tokens = tokenizer.convert_ids_to_tokens(row["input_ids"])
    trained = "".join(token for token, mask in zip(tokens, row["assistant_masks"], strict=True) if mask)
    print(f"{name:8}{''.join(tokens):41}trained: {trained or 'nothing'}")
    return trained


observed = [
    find_trained("all", "right"),
    find_trained("right", "right", truncation=True, max_length=16),
    find_trained("left", "left", truncation=True, max_length=16),
]
if observed != ["first<e>second<e>", "first<e>", ""]:
    sys.exit("The behavior changed.")
END
