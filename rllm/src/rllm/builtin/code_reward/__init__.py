"""The reward `code`: the response's program passes the tests of its task, in a sandbox."""
