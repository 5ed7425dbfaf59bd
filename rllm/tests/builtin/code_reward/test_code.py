"""`code`: programs that pass their tests get 1, and no program can claim it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from programs import needs_program

from rllm.builtin.code_reward.reward import Code, CodeParams, read_program
from rllm.builtin.code_reward.tests_of_tasks import CallTest, CodeTest, StreamTest, check_tests, read_tests
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import Response
from rllm_core.errors import ConfigError

ADD = "def add(a, b):\n    return a + b\n"
ADD_TESTS = {"test_list": ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]}
STREAMS = {"tests": {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}}
TWO_SUM = {"inputs": [[[2, 7, 11], 9]], "outputs": [[0, 1]], "fn_name": "twoSum"}
HUMAN_EVAL = {
    "prompt": 'def add(a, b):\n    """Add."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3",
}
SANDBOXES = ["local", pytest.param("bwrap", marks=needs_program("bwrap"))]


def fence(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nIt adds."


def score(program: str, data: dict[str, Any], **options: Any) -> Score:
    text = fence(program)
    rollout = Rollout(data=data, messages=[], response=Response(text=text, content=text), response_tokens=1)
    return asyncio.run(Code(CodeParams(**{"sandbox": "local", **options}))(rollout))


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    ("program", "data"),
    [
        (ADD, ADD_TESTS),
        ("a, b = map(int, input().split())\nprint(a + b)", STREAMS),
        ("class Solution:\n    def twoSum(self, numbers, target):\n        return (0, 1)", {"input_output": TWO_SUM}),
        (
            "def area(r):\n    return 3.14159265 * r * r",
            {
                "entry_point": "area",
                "test": "import math\ndef check(call):\n    assert math.isclose(call(1), math.pi, abs_tol=1e-6)",
            },
        ),
        ("def flip(x):\n    x.reverse()", {"test_list": ["x = [1, 2]\nflip(x)\nassert x == [2, 1]"]}),
        (
            "def fail():\n    raise KeyError(1)",
            {"test_list": ["try:\n    fail()\n    assert False\nexcept KeyError:\n    pass"]},
        ),
        ("def double(x):\n    return 2 * x", {"tests": [{"fn_name": "double", "input": "4", "output": "8"}]}),
    ],
    ids=["mbpp", "streams", "apps", "humaneval", "changed argument", "raised error", "json arguments"],
)
def test_right_programs_pass(program: str, data: dict[str, Any], sandbox: str) -> None:
    result = score(program, data, sandbox=sandbox)

    assert (result.value, result.correct, result.feedback) == (1.0, True, "")


@pytest.mark.parametrize(
    ("program", "test"),
    [
        (
            "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\ndef f():\n    return Point(3).x",
            "assert f() == 3",
        ),
        (
            "import pickle\nclass Box:\n    x = 3\ndef f():\n    return pickle.loads(pickle.dumps(Box())).x",
            "assert f() == 3",
        ),
        ("def f(x):\n    return [x, -x, x - x]", "x, y, z = f(float('inf'))\nassert x == -y and z != z"),
        ("def f(x):\n    return {frozenset(x)}", "assert f({(1, 2)}) == {frozenset([(1, 2)])}"),
        ("def f(x):\n    return {1j: x, None: (x, [b'b'])}", "assert f(b'a') == {1j: b'a', None: (b'a', [b'b'])}"),
        ("def f(n):\n    return 10**n", "assert f(5000) == 10**5000"),
        ("def f(x):\n    return x[::-1]", "assert f(list(range(1_000_000)))[0] == 999_999"),
        ("def f():\n    return '\\ud800'  # \ud800", "assert f() == '\\ud800'"),
        ("def sum(a, b):\n    return 6", "assert sum(10, 15) == 6"),
        (ADD, "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3"),
        (ADD, "import solution\nfrom solution import *\nassert solution.add(1, 2) == add(2, 1) == 3"),
    ],
    ids=[
        *("dataclass", "pickle", "inf and nan", "frozenset", "dict", "large integer", "large list", "surrogate"),
        *("builtin", "test function", "import"),
    ],
)
def test_values_and_names_reach_the_test(program: str, test: str) -> None:
    result = score(program, {"test": test})

    assert (result.value, result.feedback) == (1.0, "")


def test_body_of_a_function_continues_the_prompt() -> None:
    result = score("    return a + b", HUMAN_EVAL)

    assert (result.value, result.extracted) == (1.0, f"{HUMAN_EVAL['prompt']}    return a + b\n")


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    ("program", "data"),
    [
        (ADD.replace("+", "-"), ADD_TESTS),
        ("import sys\nsys.exit(0)", ADD_TESTS),
        ("import os\nos._exit(0)", ADD_TESTS),
        ("raise SystemExit", STREAMS),
        ("print('3')", STREAMS),
        (
            "class Same:\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Same()",
            ADD_TESTS,
        ),
        (
            "class Same(int):\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Same()",
            ADD_TESTS,
        ),
        ('def add(a, b):\n    print(\'{"failure": ""}\')\n    return 0', ADD_TESTS),
        ("import builtins\nbuiltins.repr = lambda value: '3'\ndef add(a, b):\n    return 0", ADD_TESTS),
        (
            "import sys\nsys.modules['json'].dumps = lambda answer: '{\"failure\": \"\"}'\ndef add(a, b): return 0",
            ADD_TESTS,
        ),
        ("def subtract(a, b):\n    return a - b", ADD_TESTS),
        ("def add(a, b:\n", ADD_TESTS),
        ("def is_right():\n    return 1", {"tests": [{"fn_name": "is_right", "input": [], "output": True}]}),
        ("def f():\n    return [True]", {"tests": [{"fn_name": "f", "input": [], "output": [1]}]}),
        ("def f():\n    return []", {"tests": {"inputs": [[]], "outputs": [[[]]], "fn_name": "f"}}),
        ("def f():\n    pass", {"tests": {"inputs": [[]], "outputs": [[None]], "fn_name": "f"}}),
        ("def set(x):\n    return 0\ndef f(x):\n    return 0", {"test_list": ["assert set(f(1)) == set((4, 5))"]}),
        (
            "def abs(x):\n    return 0\ndef f(x):\n    return 0",
            {"test": "from solution import f\nassert abs(f(1)) > 0"},
        ),
        ("x = 1", HUMAN_EVAL),
        (
            "import __main__\n__main__.encode = lambda value, depth=0: {'eval': '3'}\ndef add(a, b):\n    return 0",
            ADD_TESTS,
        ),
    ],
)
def test_wrong_programs_fail(program: str, data: dict[str, Any], sandbox: str) -> None:
    result = score(program, data, sandbox=sandbox)

    assert (result.value, result.correct) == (0.0, False)
    assert result.feedback.startswith("test ")


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("data", [ADD_TESTS, STREAMS])
def test_endless_programs_fail_at_their_time_limit(data: dict[str, Any], sandbox: str) -> None:
    result = score("while True:\n    pass", data, sandbox=sandbox, seconds=1.0)

    assert (result.value, result.correct) == (0.0, False)
    assert "not finished" in result.feedback


def test_partial_rewards_are_shares() -> None:
    result = score("def add(a, b):\n    return 3", ADD_TESTS, partial=True)

    assert (result.value, result.correct, result.metrics["passed"]) == (0.5, False, 0.5)
    assert result.feedback.startswith("test 2 of 2: ")


def test_response_without_program_is_unreadable() -> None:
    rollout = Rollout(data=ADD_TESTS, messages=[], response=Response(text="No.", content="No."), response_tokens=1)

    result = asyncio.run(Code(CodeParams(sandbox="local"))(rollout))

    assert (result.value, result.correct, result.metrics) == (0.0, False, {"unreadable": 1.0})


@pytest.mark.parametrize(
    ("content", "program"),
    [
        ("```python\na = 1\n```", "a = 1\n"),
        ("```\na = 1\n```\nor\n```py\na = 2\n```", "a = 2\n"),
        ("```python\na = 1\n```\nRun it:\n```bash\npython a.py\n```", "a = 1\n"),
        ("a = 1", "a = 1"),
        ("```rust\nlet a = 1;\n```", None),
        ("The answer is `a`.", None),
        ("", None),
        ("```python\na = 1\n```\nIt prints:\n```\n1\n```", "a = 1\n"),
        ("1. Run:\n   ```py\n   if a:\n       b\n   ```", "if a:\n    b\n"),
        ("- ```py\n  a = 1\n  ```", "a = 1\n"),
        ("~~~python3\na = 1\n~~~", "a = 1\n"),
        ('````python\na = """\n```\n"""\n````', 'a = """\n```\n"""\n'),
        ("```python\na = 1", "a = 1\n"),
        ("<think>\n```python\na = 1\n```\n</think>\n```py\na = 2\n```", "a = 2\n"),
        ("<think>\n```python\na = 1\n```", None),
    ],
)
def test_program_is_the_last_python_block(content: str, program: str | None) -> None:
    assert read_program(content) == program


@pytest.mark.parametrize(
    "content",
    [f"{fence(ADD)}\n```python\nprint(add(1, 2))\n```", f"```python\nprint(add(1, 2))\n```\nwith\n```\n{ADD}\n```"],
)
def test_program_defines_the_functions_of_tests(content: str) -> None:
    assert read_program(content, read_tests(ADD_TESTS, None)) == f"{ADD}\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"tests": json.dumps(STREAMS["tests"])}, StreamTest(stdin="1 2\n", stdout="3\n")),
        ({"input_output": TWO_SUM}, CallTest(function="twoSum", arguments=[[2, 7, 11], 9], result=[0, 1])),
        (
            {"reward_model": {"ground_truth": json.dumps({"inputs": [["1", "2"]], "outputs": [["3"]]})}},
            StreamTest(stdin="1\n2", stdout="3"),
        ),
        (
            {"verification_info": {"test_cases": [{"input": "[1]\n2", "output": "3", "fn_name": "f"}]}},
            CallTest(function="f", arguments=[[1], 2], result=3),
        ),
        (
            {"test_list": ["assert f() == 1"], "test_setup_code": "import math"},
            CodeTest(setup="import math", code="assert f() == 1"),
        ),
        (
            {
                "public_test_cases": '[{"input": "[1]\\n2", "output": "3", "testtype": "functional"}]',
                "metadata": '{"func_name": "f"}',
            },
            CallTest(function="f", arguments=[[1], 2], result=3),
        ),
        (
            {"input_output": {"inputs": [[1]], "outputs": [[2]], "fn_name": "f"}},
            CallTest(function="f", arguments=[1], result=[2], also=[2]),
        ),
    ],
)
def test_formats_of_data_sets_are_read(data: dict[str, Any], expected: Any) -> None:
    assert read_tests(data, None)[0] == expected


def test_public_and_private_cases_are_read_together() -> None:
    case = [{"input": "1", "output": "2", "testtype": "stdin"}]

    assert len(read_tests({"public_test_cases": json.dumps(case), "private_test_cases": case * 2}, None)) == 3


@pytest.mark.parametrize(
    "data",
    [
        {"question": "1 + 1?"},
        {"tests": []},
        {"tests": {"inputs": ["1"], "outputs": []}},
        {"tests": {"inputs": [[1, 2]], "outputs": [3]}},
        {"test": "def check(candidate):\n    assert candidate(1) == 2\n"},
        {"test_list": ["assert add(1, 2 == 3"]},
        {"test_list": ["assert (add(1, 2) == 3, 'wrong')"]},
        {"test": "print(f(1))"},
        {"test": "def test_f(x):\n    assert f(x)\nprint(1)"},
        {"test": "def check(candidate):\n    candidate(1)\n", "entry_point": "f"},
        {"test_cases": [{"input": "1", "output": "2", "testtype": "functional"}], "metadata": {}},
        {"public_test_cases": [{"input": "1", "output": "2"}], "private_test_cases": "eJxrYJmqzgABtZM"},
    ],
)
def test_unreadable_tests_stop_the_run(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_tests(data, None)

    assert caught.value.code == "unreadable-tests"
