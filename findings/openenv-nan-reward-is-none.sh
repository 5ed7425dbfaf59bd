#!/usr/bin/env bash
# A client of OpenEnv gets None for a reward that is NaN or infinite, the same as for a missing reward.
#
# Versions: openenv 0.10.0, pydantic 2.14.4, fastapi 0.165.0.
#
# Expected: the server raises an error for a reward that is not finite, or the client gets `nan` as the environment
# returned it. The reward's type is a number or None, and the server validates it.
#
# Observed: the server accepts the reward, and its JSON has null instead. Both the official client and a request to
# `/step` return None with a successful status. The values in `metadata` become None too.
#
# Output:
#   environment   client   POST /step
#   None          None     200 None
#   nan           None     200 None
#   inf           None     200 None
#   -inf          None     200 None
#   0.5           0.5      200 0.5
#
# Why it matters: None is the usual reward of a step before the last one, so a trainer counts it as 0 or skips it. A
# division by zero in a reward function then gives rollouts with no reward instead of an error.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
    openenv==0.10.0 pydantic==2.14.4 fastapi==0.165.0
venv/bin/python -W ignore - <<'END'
import socket
import sys
import threading
import time

import requests
import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

rewards = [None, float("nan"), float("inf"), float("-inf"), 0.5]


class Choice(Action):
    index: int


class Example(Environment):
    def reset(self, **options):
        return Observation()

    def step(self, action, **options):
        return Observation(reward=rewards[action.index])

    @property
    def state(self):
        return State()


listener = socket.create_server(("127.0.0.1", 0))
url = f"http://127.0.0.1:{listener.getsockname()[1]}"
server = uvicorn.Server(uvicorn.Config(create_fastapi_app(Example, Choice, Observation), log_level="error"))
thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
thread.start()
while not server.started:
    time.sleep(0.05)
observed = []
print("environment   client   POST /step")
try:
    with GenericEnvClient(base_url=url).sync() as client:
        client.reset()
        for index, reward in enumerate(rewards):
            seen = client.step({"index": index}).reward
            response = requests.post(f"{url}/step", json={"action": {"index": index}})
            observed.append((seen, response.status_code, response.json()["reward"]))
            print(f"{reward!s:14}{seen!s:9}{response.status_code} {response.json()['reward']}")
finally:
    server.should_exit = True
    thread.join()
if observed != [(None, 200, None)] * 4 + [(0.5, 200, 0.5)]:
    sys.exit("The behavior changed.")
END
