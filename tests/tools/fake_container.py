"""A program that imitates ``docker`` and ``podman``, with containers of bubblewrap.

It records its arguments in ``calls.jsonl`` of its own directory. Containers have the machine's ``/usr``, no image, and
no limits.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


def write_fake_program(directory: Path, program: str) -> None:
    """Write the executable `program` into `directory`, which belongs on PATH."""
    file = directory / program
    file.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
    file.chmod(0o755)


def calls(directory: Path) -> list[list[str]]:
    """Return the arguments of all calls of the executables in `directory`."""
    return [json.loads(line) for line in (directory / "calls.jsonl").read_text().splitlines()]


def _after(arguments: Sequence[str], name: str) -> list[str]:
    """Return the values of an option that may be repeated."""
    return [value for option, value in pairwise(arguments) if option == name]


def _run(directory: Path, arguments: list[str]) -> None:
    """Become bwrap, as if it were the client of a daemon. It ends with its first program."""
    (name,) = _after(arguments, "--name")
    entry = arguments.index("--entrypoint")
    command = [arguments[entry + 1], *arguments[entry + 3 :]]
    info = os.open(directory / f"{name}.json", os.O_WRONLY | os.O_CREAT)
    os.set_inheritable(info, True)
    words = ["bwrap", "--unshare-all", "--info-fd", str(info), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for place in ("/usr", "/etc", sys.base_prefix):
        words += ["--ro-bind", place, place]
    for link in ("bin", "sbin", "lib", "lib64"):
        if Path("/", link).is_symlink():
            words += ["--symlink", f"usr/{link}", f"/{link}"]
    (directory / f"{name}-app").mkdir()
    (sources := directory / f"{name}-volumes").write_text("\n".join(_after(arguments, "--volume")))
    for other in _after(arguments, "--volumes-from"):
        sources, name = directory / f"{other}-volumes", other
        words += ["--chdir", *_after(arguments, "--workdir")]
    for volume in sources.read_text().splitlines():
        source, target, *_ = volume.split(":") if ":" in volume else (directory / f"{name}-app", volume)
        words += ["--bind" if volume == target else "--ro-bind", str(source), target]
    os.execvp("bwrap", [*words, "--setenv", "HOME", "/tmp", *command])


def _exec(directory: Path, arguments: list[str]) -> None:
    """Become a program in the container's namespaces."""
    (place,) = _after(arguments, "--workdir")
    variables = [each if "=" in each else f"{each}={os.environ[each]}" for each in _after(arguments, "--env")]
    start = 4 + 2 * len(variables)  # After exec, --interactive, --workdir and its value, and the variables.
    pid = json.loads((directory / f"{arguments[start]}.json").read_text())["child-pid"]
    words = ["nsenter", "--preserve-credentials", "--target", str(pid), "--user", "--mount", "--pid", "--net", "--"]
    words += ["env", f"--chdir={place}", "HOME=/tmp", *variables, *arguments[start + 1 :]]
    os.execvp("nsenter", words)


def main(directory: Path, arguments: list[str]) -> None:
    with (directory / "calls.jsonl").open("a") as file:
        file.write(json.dumps([Path(sys.argv[0]).name, *arguments]) + "\n")
    if arguments[0] == "run":
        _run(directory, arguments)
    elif arguments[0] == "exec":
        _exec(directory, arguments)


if __name__ == "__main__":
    main(Path(sys.argv[0]).parent, sys.argv[1:])
