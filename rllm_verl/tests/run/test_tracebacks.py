"""The origin of an error in Ray's text."""

from __future__ import annotations

from rllm_verl.failures import place_in, plain, process_in

OF_RAY = """\x1b[36mray::Outer.call()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=a, repr=<o>)
  File "/x/outer.py", line 3, in call
\x1b[36mray::Inner.call()\x1b[39m (pid=22, ip=10.0.0.2, actor_id=b, repr=<i>)
  File "/x/inner.py", line 44, in call
torch.OutOfMemoryError: CUDA out of memory."""


def test_an_error_passed_on_names_the_process_and_the_line_that_raised_it() -> None:
    assert process_in(plain(OF_RAY)) == (22, "10.0.0.2")
    assert place_in(OF_RAY) == "(inner.py, line 44)"
    assert process_in("") == (0, "")
    assert place_in("") == ""
