#!/usr/bin/env bash
# A sequence classifier whose padding token is its end token gives a finished and a cut-off response the same score.
#
# Versions: transformers 5.10.4, torch 2.13.0.
#
# Expected: the score of a row comes from its last token with attention mask 1. A response with its end token and the
# same response without it are different rows, so they have different scores.
#
# Observed: if `pad_token_id` equals `eos_token_id`, the classifier takes the last token that is not this id, and
# ignores the attention mask. The score comes from the token before the end. The weights see the end token, and no score
# depends on it. The same row as `inputs_embeds` gives a third score. No warning for token ids.
#
# Output:
#   padding is its own token   finished  0.086020  cut off -0.082581  as embeddings  0.086020
#   padding is the end token   finished -0.082581  cut off -0.082581  as embeddings  0.056223
#
# Why it matters: many models have no padding token, and training scripts then set it to the end token. A reward model
# that is trained like this cannot prefer finished responses. A server that pools the last token of the row gives other
# scores than the training.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 torch==2.13.0
venv/bin/python - <<'END'
import sys

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
END = 9


def find_scores(title: str, padding: int) -> tuple[float, float, float]:
    """Print and return the scores of a finished row, of a cut-off row, and of the finished row as embeddings."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=10, num_labels=1, pad_token_id=padding, eos_token_id=END, **SIZES)
    model = LlamaForSequenceClassification(config).eval()
    finished, cut_off = torch.tensor([[1, 2, 3, END]]), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        scores = (
            model(input_ids=finished, attention_mask=torch.ones_like(finished)).logits.item(),
            model(input_ids=cut_off, attention_mask=torch.ones_like(cut_off)).logits.item(),
            model(inputs_embeds=model.model.embed_tokens(finished)).logits.item(),
        )
    print("{:26} finished {:9.6f}  cut off {:9.6f}  as embeddings {:9.6f}".format(title, *scores))
    return scores


own = find_scores("padding is its own token", 0)
same = find_scores("padding is the end token", END)
if not (abs(own[0] - own[1]) > 1e-3 and abs(same[0] - same[1]) < 1e-6 and abs(same[0] - same[2]) > 1e-3):
    sys.exit("The behavior changed.")
END
