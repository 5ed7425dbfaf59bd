"""The program in a response."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from rllm.builtin.code_reward.in_sandbox import find_functions
from rllm.builtin.code_reward.tests_of_tasks import CallTest, CodeTest, Test
from rllm.builtin.tasks.final_answers import cut_reasoning

FENCE = re.compile(r"(?P<indent>\s*(?:(?:[-*+]|\d+[.)])\s+)?)(?P<fence>`{3,}|~{3,})[ \t{.]*(?P<language>\w*)[^`]*")
"""The first line of a block of code in Markdown. It may be in an item of a list."""
PYTHON = re.compile(r"(py|python)\d*", re.IGNORECASE)


def read_program(content: str, tests: Sequence[Test] = (), beginning: str = "") -> str | None:
    """Return the Python program of a response, or None.

    It is the last block of code with the language Python. If no block has it, it is the last block without a language.
    If tests call functions, it is the block that defines most of these functions. A response without any block is a
    program itself if it is valid Python. The reasoning is not read.

    Args:
        content: the response.
        tests: the tests, which call functions of the program.
        beginning: the start of a function. A program that is only its indented body gets this start.
    """
    content = cut_reasoning(content).encode(errors="replace").decode()
    blocks = _blocks(content)
    tagged = [code for language, code in blocks if PYTHON.fullmatch(language)]
    untagged = [code for language, code in blocks if not language]
    # The first of equally good programs in this order is chosen.
    programs = [*reversed(tagged), *reversed(untagged)] if blocks else [content]
    if not programs:
        return None
    if len(programs) > 1:
        names = [defined_names(code) for code in programs]
        wanted = set[str]().union(*(_functions(test, set().union(*names)) for test in tests))
        program = max(zip(programs, names, strict=True), key=lambda each: len(each[1] & wanted))[0]
    else:
        program = programs[0]
    if _parse(program) is None and _parse(beginning + program) is not None:
        return beginning + program
    return program if blocks or getattr(_parse(program), "body", None) else None


def defined_names(program: str) -> set[str]:
    """Return the names that a program defines at its top level, and the methods of its class ``Solution``."""
    names: set[str] = set()
    waiting: list[ast.AST] = [_parse(program) or ast.Module([], [])]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            is_solution = isinstance(node, ast.ClassDef) and node.name == "Solution"
            waiting += node.body if is_solution else []
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        waiting += ast.iter_child_nodes(node)
    return names


def beginning_of(data: Any) -> str:
    """Return a task's ``prompt`` if it starts the function ``entry_point``, as HumanEval's do. Otherwise empty."""
    prompt, entry = data.get("prompt"), data.get("entry_point")
    is_beginning = isinstance(prompt, str) and isinstance(entry, str) and entry in defined_names(prompt)
    return prompt.rstrip() + "\n" if is_beginning else ""


def _functions(test: Test, defined: set[str]) -> set[str]:
    if isinstance(test, CallTest):
        return {test.function}
    return find_functions(ast.parse(f"{test.setup}\n{test.code}"), defined) if isinstance(test, CodeTest) else set()


def _blocks(content: str) -> list[tuple[str, str]]:
    """Return the language and the contents of each block. The last block may have no end."""
    blocks: list[tuple[str, str]] = []
    lines = iter(content.split("\n"))
    for line in lines:
        if (start := FENCE.fullmatch(line)) is None:
            continue
        fence, indent = start["fence"], len(start["indent"])
        code = []
        for inner in lines:
            text = inner.strip()
            is_end = set(text) == {fence[0]} and len(text) >= len(fence)
            if is_end and len(inner) - len(inner.lstrip()) <= indent:
                break
            code.append(inner[min(indent, len(inner) - len(inner.lstrip())) :])
        blocks.append((start["language"], "".join(f"{each}\n" for each in code)))
    return blocks


def _parse(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
