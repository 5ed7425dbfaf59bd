#!/usr/bin/env bash
# The client of Tinker repeats a request after the statuses 409 and 501, but not after 423 and 425.
#
# Versions: tinker 0.38.0.
#
# Expected: a client repeats a request if the failure can pass: 408, 423, 425, 429, 500 and 503. It raises the error of
# 400, 404, 409, 422 and 501 at once, because the same request fails again.
#
# Observed: 408, 409, 429 and all statuses from 500 are repeated with growing pauses. All other statuses in the table
# raise an error at once, also 423 (locked) and 425 (too early).
#
# Output (the server fails twice, then it succeeds):
#   status   requests   result
#   400      1          BadRequestError
#   404      1          NotFoundError
#   408      3          success
#   409      3          success
#   422      1          UnprocessableEntityError
#   423      1          APIStatusError
#   425      1          APIStatusError
#   429      3          success
#   500      3          success
#   501      3          success
#   503      3          success
#
# Why it matters: if your server answers a permanent conflict or a missing feature with 409 or 501, the trainer looks as
# if it hangs, and its user does not see the error message. Answer with 400 instead, and with 503 if a wait helps.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile tinker==0.38.0
TINKER_TELEMETRY=0 venv/bin/python -W ignore - <<'END'
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tinker

requests = 0


class Server(BaseHTTPRequestHandler):
    status = 200

    def do_POST(self):
        global requests
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, answer = 200, {}
        if self.path.endswith("/create_session"):
            answer = {"type": "create_session", "session_id": "session"}
        elif self.path.endswith("/get_server_capabilities"):
            requests += 1
            status, answer = (Server.status, {"detail": "failure"}) if requests < 3 else (200, {"supported_models": []})
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *values):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = tinker.ServiceClient(api_key="tml-example", base_url=f"http://127.0.0.1:{server.server_port}")
repeated = []
print("status   requests   result")
for status in (400, 404, 408, 409, 422, 423, 425, 429, 500, 501, 503):
    Server.status, requests = status, 0
    try:
        client.get_server_capabilities()
        result = "success"
        repeated.append(status)
    except tinker.APIStatusError as error:
        result = type(error).__name__
    print(f"{status:<9}{requests:<11}{result}")
if repeated != [408, 409, 429, 500, 501, 503]:
    sys.exit("The behavior changed.")
END
