#!/usr/bin/env bash
# Mistral's tokenizers of version 2 and 3 move the system message and the tools into the last user turn.
#
# Versions: mistral-common 1.9.1, sentencepiece 0.2.1, with the vocabularies that mistral-common ships.
#
# Expected: the prompt of turn 2 begins with the prompt of turn 1, because a conversation grows at its end. Versions 1
# and 7 do this.
#
# Observed: versions 2 and 3 (for example Mistral Small 2402 and Mixtral 8x22B) write the system message into the last
# user turn, and version 3 writes the tools before it. At each new question both move, so the prompts differ from the
# third token.
#
# Output:
#   v1  prefix: True
#   v2  prefix: False
#       <s>[INST]▁SYSTEM<0x0A><0x0A>one[/INST]
#       <s>[INST]▁one[/INST]▁answer</s>[INST]▁SYSTEM<0x0A><0x0A>two[/INST]
#   v3  prefix: False
#       …
#   v7  prefix: True
#   v3, tools are in turn 1 of 1: True, in turn 1 of 2: False
#
# Why it matters: rows of a rollout do not extend each other, so a rollout of ten questions is ten rows instead of one,
# and the server's prefix cache has no hits. Fine-tuning on whole conversations trains answers whose prompts had no
# system message.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile mistral-common==1.9.1 sentencepiece==0.2.1
venv/bin/python -W ignore - <<'END'
import sys

from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, Tool
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

one = [SystemMessage(content="SYSTEM"), UserMessage(content="one")]
two = [*one, AssistantMessage(content="answer"), UserMessage(content="two")]
observed = {}
for version in ("v1", "v2", "v3", "v7"):
    tokenizer = getattr(MistralTokenizer, version)()
    first, second = (tokenizer.encode_chat_completion(ChatCompletionRequest(messages=turns)) for turns in (one, two))
    observed[version] = second.tokens[: len(first.tokens)] == first.tokens
    print(f"{version}  prefix: {observed[version]}")
    if not observed[version]:
        print(f"    {first.text}\n    {second.text}")
tools = [Tool(function=Function(name="look", description="Look up", parameters={"type": "object", "properties": {}}))]
texts = [
    MistralTokenizer.v3().encode_chat_completion(ChatCompletionRequest(messages=turns, tools=tools)).text
    for turns in (one, two)
]
moved = [text.startswith("<s>[AVAILABLE_TOOLS]") for text in texts]
print(f"v3, tools are in turn 1 of 1: {moved[0]}, in turn 1 of 2: {moved[1]}")
if list(observed.values()) != [True, False, False, True] or moved != [True, False]:
    sys.exit("The behavior changed.")
END
