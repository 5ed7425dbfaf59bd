"""Run a command in a container, with a port that leads to a Unix socket. It needs only Python's standard library.

Its arguments are the path of the Unix socket, a port, and the command. A child process listens on the port, and
forwards its connections. It is killed with the command's other processes.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

CHUNK = 1 << 16
NOT_FOUND = 127


def main(path: str, port: str, *command: str) -> None:
    """Listen on the port, and replace this process with the command."""
    listener = socket.create_server(("127.0.0.1", int(port)))
    if os.fork() == 0:
        # The command's outputs end with the command, so this process keeps none of them.
        os.setsid()
        empty = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(empty, descriptor)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_forward, args=(connection, path), daemon=True).start()
    listener.close()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(NOT_FOUND)


def _forward(connection: socket.socket, path: str) -> None:
    with connection, socket.socket(socket.AF_UNIX) as machine:
        try:
            machine.connect(path)
        except OSError:
            return
        back = threading.Thread(target=_pump, args=(machine, connection), daemon=True)
        back.start()
        _pump(connection, machine)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while part := source.recv(CHUNK):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # The other side sees it when its connection is closed.


if __name__ == "__main__":
    main(*sys.argv[1:])
