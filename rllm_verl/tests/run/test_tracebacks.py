"""The origin of an error in Ray's text."""

from __future__ import annotations

from rllm_verl.calls import find_place, find_process, strip_colors

OF_RAY = """\x1b[36mray::Outer.call()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=a, repr=<o>)
  File "/x/outer.py", line 3, in call
\x1b[36mray::Inner.call()\x1b[39m (pid=22, ip=10.0.0.2, actor_id=b, repr=<i>)
  File "/x/inner.py", line 44, in call
torch.OutOfMemoryError: CUDA out of memory."""


def test_forwarded_error_has_raising_process_and_line() -> None:
    assert find_process(strip_colors(OF_RAY)) == (22, "10.0.0.2")
    assert find_place(OF_RAY) == "(inner.py, line 44)"
    assert find_process("") == (0, "")
    assert find_place("") == ""
