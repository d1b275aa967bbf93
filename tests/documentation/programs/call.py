"""What the shell finds under a program's name: it has `preloaded` run it, on its own streams."""

import json
import os
import signal
import socket
import sys


def call(words: list[str]) -> int:
    """Have it run; gives its exit code. Signals that ask it to end are passed on, and one that ended it ends this."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["DOCUMENTED_SOCKET"])
        asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
        data = json.dumps(asked).encode()
        connection.sendall(len(data).to_bytes(4, "big"))
        sent = socket.send_fds(connection, [data], [0, 1, 2])
        connection.sendall(data[sent:])
        child = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: os.kill(child, number))
        code = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(call(sys.argv[1:]))
