"""Takes the place of ``ssh``, and runs commands on this machine.

As with ssh, a command has its own pipes and session, and outlives the ssh process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import NoReturn


def copy(source: int, sink: int, *, close: bool = False) -> None:
    while data := os.read(source, 1 << 16):
        try:
            while data:
                data = data[os.write(sink, data) :]
        except BrokenPipeError:
            return
    if close:
        os.close(sink)


def run(command: list[str]) -> int:
    """Run a command to its end. Return its exit code, as a shell has it."""
    its_input, to_it = os.pipe()
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=its_input, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    os.close(its_input)
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=copy, args=(0, to_it), kwargs={"close": True}, daemon=True).start()
    threads = [
        threading.Thread(target=copy, args=ends)
        for ends in ((process.stdout.fileno(), 1), (process.stderr.fileno(), 2))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    code = process.wait()
    return code if code >= 0 else 128 - code


def ssh(arguments: list[str]) -> NoReturn:
    _host, command = arguments[arguments.index("--") + 1 :]
    leave(run(["sh", "-c", command]))


def leave(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)  # the thread that reads standard input may still run


if __name__ == "__main__":
    ssh(sys.argv[1:])
