"""Stands in for ``kubectl`` and ``ssh`` (the first argument says which): what they run is run on this machine.

As on another one, it has pipes and a session of its own, and outlives what carries it. Of kubectl there is what it
takes, says and returns for ``exec -i``. ``FAKE_PODS`` names a folder with a folder for each namespace and a file for
each pod in it; a pod whose file says ``forbidden`` or ``gone`` fails as the real one does. The namespace that the
launcher is in is ``jobs``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

ACCOUNT = "system:serviceaccount:jobs:launcher"


def fail(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    raise SystemExit(1)


def parse(arguments: list[str]) -> tuple[str, str, list[str]]:
    """Namespace, pod and command, in the one form in which they may be given."""
    if arguments[:2] != ["exec", "-i"] or "--" not in arguments:
        fail(f"error: this stand-in knows exec -i [-n NAMESPACE] POD -- COMMAND only, not {arguments}")
    options, command = arguments[2 : arguments.index("--")], arguments[arguments.index("--") + 1 :]
    namespace = "jobs"
    if options[0] == "-n":
        namespace, options = options[1], options[2:]
    if len(options) != 1 or not command:
        fail(f"error: what is {options}?")
    return namespace, options[0], command


def look_up(namespace: str, pod: str) -> None:
    path = Path(os.environ["FAKE_PODS"], namespace, pod)
    if not path.exists():
        fail(f'Error from server (NotFound): pods "{pod}" not found')
    state = path.read_text()
    if state == "forbidden":
        fail(
            f'Error from server (Forbidden): pods "{pod}" is forbidden: User "{ACCOUNT}" cannot create resource '
            f'"pods/exec" in API group "" in the namespace "{namespace}"'
        )
    if state == "gone":
        fail('error: unable to upgrade connection: container not found ("worker")')


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
    """Run a command to its end; its exit code as a shell tells it."""
    its_input, to_it = os.pipe()
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=its_input, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    os.close(its_input)
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=copy, args=(0, to_it), kwargs={"close": True}, daemon=True).start()
    ways = [
        threading.Thread(target=copy, args=way) for way in ((process.stdout.fileno(), 1), (process.stderr.fileno(), 2))
    ]
    for way in ways:
        way.start()
    for way in ways:
        way.join()
    code = process.wait()
    return code if code >= 0 else 128 - code


def kubectl(arguments: list[str]) -> NoReturn:
    namespace, pod, command = parse(arguments)
    look_up(namespace, pod)
    sys.stderr.write('Defaulted container "worker" out of: worker, istio-proxy\n')
    sys.stderr.flush()
    code = run(command)
    if code:
        sys.stderr.write(f"command terminated with exit code {code}\n")
    leave(code)


def ssh(arguments: list[str]) -> NoReturn:
    _host, command = arguments[arguments.index("--") + 1 :]
    leave(run(["sh", "-c", command]))


def leave(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)  # the thread that reads standard input may still be at it


if __name__ == "__main__":
    {"kubectl": kubectl, "ssh": ssh}[sys.argv[1]](sys.argv[2:])
