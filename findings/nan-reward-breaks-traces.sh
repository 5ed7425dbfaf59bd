#!/usr/bin/env bash
# After one NaN reward, verifiers cannot read any trace of the file that it wrote.
#
# Version: verifiers 0.4.0.
#
# Expected: `read_episodes` reads every file that `write_episode` wrote. If NaN cannot be stored, the writer raises an
# error, or the reader skips this one episode.
#
# Observed: a score that is NaN or infinite is written as `"score":null` without an error. The class `Reward` accepts
# NaN, but not null. So `read_episodes` raises ValidationError, and returns none of the file's episodes. prime-rl writes
# its rollouts with the same classes, and its files contain the same null.
#
# Output:
#   written: 3 episodes, 1 of them with a score of null
#   read: ValidationError, 0 episodes
#
# Why it matters: a reward of 0/0 is common, for example a mean over no test cases. The evaluation ends without an error,
# and its results cannot be loaded. Test rewards with `math.isfinite` before you return them.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile verifiers==0.4.0
cat > traces.py <<'END'
import math
from pathlib import Path

from pydantic import ValidationError
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, Episode
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, Reward, Trace, TraceTask, WireTrace
from verifiers.v1.utils.trace_store import TRACES_FILE, read_episodes, write_episode

for score in (1.0, math.nan, 0.5):
    task = TraceTask(type="Sum", data=WireTaskData(idx=0, prompt="1+1"), key="sum", hash="sum")
    trace = Trace[WireTaskData, State, WireAgentConfig](
        task=task, agent=AgentInfo(config=WireAgentConfig()), rewards={"right": Reward(score=score)}
    )
    kind = Episode[WireTaskData, State, WireAgentConfig]
    write_episode(Path(), kind(env=EnvInfo(id="sum"), task=task, traces=[trace], ok=True))
text = Path(TRACES_FILE).read_text()
print(f"written: {len(text.splitlines())} episodes, {text.count(':null')} of them with a score of null")
try:
    print(f"read: {len(read_episodes(Path(), WireTrace))} episodes")
except ValidationError as error:
    print(f"read: {type(error).__name__}, 0 episodes")
END
HOME="$directory" venv/bin/python -W ignore traces.py | tee found
if ! grep -q "3 episodes, 1 of them with a score of null" found || ! grep -q "read: ValidationError" found; then
  echo "The behavior changed."
  exit 1
fi
