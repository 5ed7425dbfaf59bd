"""Programs for separate processes. They write a store and print the acknowledged rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)

WRITE_FOR_EVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from made_rows import call, session
from rllm_gateway.calls import CallStore

async def main(store, name):
    await store.add(session(name))
    print(name, flush=True)
    async def writer(number):
        index = 0
        while True:
            id = f"{number}.{index}"
            await store.add(call(id, name, new=50, sampled=1000))
            print(f"{name} {id}", flush=True)
            index += 1
    await asyncio.gather(*(writer(number) for number in range(8)))

asyncio.run(main(CallStore.open(Path(sys.argv[1])), sys.argv[2]))
"""
UNTIL_FULL = """
import asyncio, resource, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from made_rows import call, session
from rllm_gateway.calls import CallStore, StoreError

async def fill(store, name):
    for index in range(10_000):
        rows = [call(f"{index}.{n}", name, new=1000, sampled=1000) for n in range(4)]
        # Which of them are committed together is a matter of time.
        errors = await asyncio.gather(*map(store.add, rows), return_exceptions=True)
        for row, error in zip(rows, errors):
            if error is None:
                print(name, row.id, flush=True)
        for error in filter(None, errors):
            assert isinstance(error, StoreError), error
            print(f"{name} refused {error}", flush=True)
            return

async def main(store, name):
    await store.add(session(name))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, -1))
    await fill(store, name)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    await store.add(call("after", name))
    print(f"{name} after", flush=True)
    store.close()

asyncio.run(main(CallStore.open(Path(sys.argv[1])), sys.argv[2]))
"""


def start(program: str, path: Path, name: str) -> subprocess.Popen[str]:
    """A process that writes the session `name`; each acknowledged row is a line of its output."""
    words = [sys.executable, "-c", program, str(path), name, HERE]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
