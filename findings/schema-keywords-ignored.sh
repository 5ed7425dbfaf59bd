#!/usr/bin/env bash
# Two of three grammar libraries ignore keywords of a JSON schema without an error.
#
# Versions: outlines-core 0.2.14, lm-format-enforcer 0.11.3, llguidance 1.9.1, jsonschema 4.26.0.
#
# Expected: a library that constrains output to a schema enforces each keyword or raises an error for a keyword that it
# does not support. So each constrained output is valid, and each valid document in the usual form can be sampled.
#
# Observed: only llguidance does this. The other two accept the schema, and then allow invalid documents ("ignored") or
# forbid valid ones ("forbidden"). Even `minimum` is ignored, and a `pattern` must match the whole string.
#
# Output:
#   keyword            outlines-core     lm-format-enforcer  llguidance
#   minimum            ignored           ignored             enforced
#   multipleOf         ignored           ignored             enforced
#   pattern            forbidden         forbidden           enforced
#   not                ignored           ignored             error
#   if, then           ignored           ignored             error
#   dependentRequired  ignored           ignored             error
#   $ref, maximum      ignored           ignored             enforced
#   uniqueItems        ignored           ignored             error
#   contains           ignored           ignored             error
#   prefixItems        enforced          ignored             enforced
#   allOf              forbidden         enforced            enforced
#   oneOf              ignored           forbidden           error
#
# Why it matters: rewards of structured output are often "1, because the grammar makes it valid". With an ignored
# keyword the invalid calls get that reward too. With a forbidden one, the best response has probability 0 and its
# log-prob is -inf.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
  outlines-core==0.2.14 lm-format-enforcer==0.11.3 llguidance==1.9.1 jsonschema==4.26.0 numpy
venv/bin/python - <<'END'
import json
import re
import sys

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from lmformatenforcer import JsonSchemaParser
from outlines_core.json_schema import build_regex_from_schema


class Bytes:
    """A vocabulary with one token for each byte."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


TOKENIZER = LLTokenizer(TokenizerWrapper(Bytes()))


def outlines(schema: dict, document: str) -> bool:
    return re.fullmatch(build_regex_from_schema(json.dumps(schema)), document) is not None


def enforcer(schema: dict, document: str) -> bool:
    parser = JsonSchemaParser(schema)
    for character in document:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


def guidance(schema: dict, document: str) -> bool:
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(schema))
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    ids = TOKENIZER.tokenize_str(document)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def classify(library: object, schema: dict, invalid: str, valid: str) -> str:
    """Return how a library uses a schema. Both documents are checked with jsonschema first."""
    validator = Draft202012Validator(schema)
    assert not validator.is_valid(json.loads(invalid)) and validator.is_valid(json.loads(valid))
    try:
        wrong, right = library(schema, invalid), library(schema, valid)
    except Exception:  # Each library has its own class.
        return "error"
    return "+".join([*["ignored"] * wrong, *["forbidden"] * (not right)]) or "enforced"


def make_object(**keywords: object) -> dict:
    """Return the schema of an object with two optional integers."""
    integers = {name: {"type": "integer"} for name in "ab"}
    return {"type": "object", "properties": integers, "additionalProperties": False, **keywords}


ROWS = {
    "minimum": ({"type": "integer", "minimum": 3}, "2", "5"),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, "4", "9"),
    "pattern": ({"type": "string", "pattern": "b"}, '"a"', '"abc"'),
    "not": ({"type": "integer", "not": {"const": 0}}, "0", "1"),
    "if, then": (
        make_object(**{"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
        '{"a": 1}',
        '{"a": 1, "b": 2}',
    ),
    "dependentRequired": (make_object(dependentRequired={"a": ["b"]}), '{"a": 1}', '{"a": 1, "b": 2}'),
    "$ref, maximum": ({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "maximum": 5}, "9", "3"),
    "uniqueItems": ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, "[1, 1]", "[1, 2]"),
    "contains": ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}}, "[1, 2]", "[1, 3]"),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, '["x"]', "[1]"),
    "allOf": ({"allOf": [make_object(required=["a"]), make_object(required=["b"])]}, '{"a": 1}', '{"a": 1, "b": 2}'),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}, "7", "3"),
}
LIBRARIES = {"outlines-core": outlines, "lm-format-enforcer": enforcer, "llguidance": guidance}
print(f"{'keyword':19}{'outlines-core':18}{'lm-format-enforcer':20}llguidance")
observed = {}
for name, row in ROWS.items():
    observed[name] = tuple(classify(library, *row) for library in LIBRARIES.values())
    print("{:19}{:18}{:20}{}".format(name, *observed[name]))
if observed != {
    "minimum": ("ignored", "ignored", "enforced"),
    "multipleOf": ("ignored", "ignored", "enforced"),
    "pattern": ("forbidden", "forbidden", "enforced"),
    "not": ("ignored", "ignored", "error"),
    "if, then": ("ignored", "ignored", "error"),
    "dependentRequired": ("ignored", "ignored", "error"),
    "$ref, maximum": ("ignored", "ignored", "enforced"),
    "uniqueItems": ("ignored", "ignored", "error"),
    "contains": ("ignored", "ignored", "error"),
    "prefixItems": ("enforced", "ignored", "enforced"),
    "allOf": ("forbidden", "enforced", "enforced"),
    "oneOf": ("ignored", "forbidden", "error"),
}:
    sys.exit("The behavior changed.")
END
