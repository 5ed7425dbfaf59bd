#!/usr/bin/env bash
# A traced program draws other random numbers: OpenTelemetry's SDK takes span ids from Python's global generator.
#
# Versions: opentelemetry-sdk 1.45.2.
#
# Expected: tracing only observes. A program that calls `random.seed(0)` draws the same numbers with and without spans,
# as it does with loggers and profilers, and `uuid.uuid4` draws from the operating system.
#
# Observed: each new trace takes 128 bits and each span 64 bits from the functions of the module `random`. So the next
# number after a span differs, also in a program without an exporter. An `IdGenerator` with its own `random.Random`
# leaves the numbers unchanged.
#
# Output:
#   without spans                 0.8444 0.7580 0.4206
#   with the default ids          0.8444 0.5113 0.4766
#   with ids of its own generator 0.8444 0.7580 0.4206
#
# Why it matters: environments, data sets and rewards often use `random` with a seed. Training with tracing then sees
# other tasks, so the run cannot be compared with the same seed without tracing.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile opentelemetry-sdk==1.45.2
venv/bin/python - <<'END'
import random
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator


class OwnIds(IdGenerator):
    def __init__(self):
        self.random = random.Random(1)

    def generate_span_id(self):
        return self.random.getrandbits(64) or 1

    def generate_trace_id(self):
        return self.random.getrandbits(128) or 1


def draws(provider):
    """Return three draws, each in a span of the provider's tracer."""
    random.seed(0)
    numbers = [random.random()]
    for _ in range(2):
        if provider is not None:
            provider.get_tracer("steps").start_span("step").end()
        numbers.append(random.random())
    return numbers


plain = draws(None)
default, own = draws(TracerProvider()), draws(TracerProvider(id_generator=OwnIds()))
for name, numbers in (("without spans", plain), ("with the default ids", default), ("with ids of its own generator", own)):
    print(f"{name:29}", *(f"{number:.4f}" for number in numbers))
if default == plain or own != plain:
    sys.exit("The behavior changed.")
END
