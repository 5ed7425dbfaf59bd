"""The cause of an error, found in what Ray and vLLM write."""

from __future__ import annotations

import pytest

from rllm_verl.failures import last_cause, place_in, plain, points_elsewhere, process_in

OF_VLLM = """
(EngineCore_DP0 pid=77) INFO 10-31 12:00:00 [core.py:58] Initializing a V1 LLM engine
(EngineCore_DP0 pid=77) ERROR 10-31 12:00:01 [core.py:718] Traceback (most recent call last):
(EngineCore_DP0 pid=77) ERROR 10-31 12:00:01 [core.py:718]   File "/x/core.py", line 709, in run
(EngineCore_DP0 pid=77) ERROR 10-31 12:00:01 [core.py:718] ValueError: No available memory for the cache blocks.
(EngineCore_DP0 pid=77) Process EngineCore_DP0:
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
OF_RAY = """\x1b[36mray::Outer.call()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=a, repr=<o>)
  File "/x/outer.py", line 3, in call
\x1b[36mray::Inner.call()\x1b[39m (pid=22, ip=10.0.0.2, actor_id=b, repr=<i>)
  File "/x/inner.py", line 44, in call
torch.OutOfMemoryError: CUDA out of memory."""


def test_the_cause_is_the_last_exception_that_does_not_point_elsewhere() -> None:
    assert last_cause(OF_VLLM.splitlines()) == "ValueError: No available memory for the cache blocks."
    assert last_cause(plain(OF_RAY).splitlines()) == "torch.OutOfMemoryError: CUDA out of memory."
    assert last_cause(["step 1", "no error here: all well"]) is None


@pytest.mark.parametrize("text", ["", "See stack trace (above) for the root cause.", "failed, check the worker's log"])
def test_such_texts_say_nothing_themselves(text: str) -> None:
    assert points_elsewhere(text)


def test_others_do() -> None:
    assert not points_elsewhere("CUDA out of memory. Tried to allocate 2 GiB")


def test_an_error_passed_on_names_the_process_and_the_line_that_raised_it() -> None:
    assert process_in(plain(OF_RAY)) == (22, "10.0.0.2")
    assert place_in(OF_RAY) == "(inner.py, line 44)"
    assert process_in("") == (0, "")
    assert place_in("") == ""
