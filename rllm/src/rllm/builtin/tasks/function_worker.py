"""The process that calls a reward function.

The command is ``python -m rllm.builtin.tasks.function_worker FILE.py:FUNCTION DIGEST PATH``.

It runs the file once and writes ``ready``, or the reason why it cannot. Then it reads lines with a list of rollouts,
and writes a line with their scores for each. The answer to an empty list is true if the function compares rollouts.
`DIGEST` is the file's digest at the start of the run: a process that replaces a killed one must not call a changed
function. `PATH` is a JSON list of import directories.
"""

from __future__ import annotations

import json
import sys

from rllm_core.errors import ConfigError
from rllm_serving.line_worker import answer_lines, take_pipes, write_line


def main(function: str, digest: str, path: str) -> None:
    """Call the function for each input line until the input ends."""
    asked, responses = take_pipes()
    sys.path[:] = json.loads(path)
    from rllm.builtin.tasks.function_call import FunctionCall
    from rllm.builtin.tasks.reward_file import compute_digest
    from rllm.builtin.tasks.rollout_json import results_to_json, rollout_from_json

    try:
        if compute_digest(function) != digest:
            raise ConfigError(
                "source-changed",
                f"{function} changed during the run.",
                "Undo the change and use --resume, or start a new run with --overwrite.",
            )
        call = FunctionCall(function)
    except ConfigError as error:
        write_line(responses, json.dumps({"code": error.code, "message": error.message, "hint": error.hint}))
        return

    def score(question: str) -> str:
        rollouts = [rollout_from_json(each) for each in json.loads(question)]
        if not rollouts:
            return json.dumps(call.compares)
        try:
            return results_to_json(call(rollouts))
        except Exception as error:  # noqa: BLE001  (a result of a user's function; what went wrong is the feedback)
            return results_to_json([call.failed(error)] * len(rollouts))

    answer_lines(score, asked, responses)


if __name__ == "__main__":
    main(*sys.argv[1:])
