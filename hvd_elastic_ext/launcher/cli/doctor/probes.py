"""Gathers the facts for ``hvd-elastic doctor``: of this machine and of hosts. It does not judge them.

Nothing is imported here that could crash: torch and Horovod are tried in a process of their own, in the same way here
and over ssh.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.agents.transports.known_hosts import host_keys
from hvd_elastic_ext.launcher.agents.transports.ssh import Ssh
from hvd_elastic_ext.launcher.cli.doctor.facts import SHARED_MEMORY, DoctorFacts, HostFacts, InterpreterReport, Steps
from hvd_elastic_ext.launcher.job.interfaces import is_this_machine

CONNECT_TIMEOUT_S: Final = 5
PROBE_TIMEOUT_S: Final = 90.0
"""Importing torch from a cold network file system may take this long; a hung host must not take longer."""
HOSTS_AT_ONCE: Final = 16

PROBE: Final = r"""
import sys
if not sys.path[0]:  # the current directory: a json.py there is not Python's
    del sys.path[0]
import json, os, socket, stat
def say(step, **facts):
    sys.stdout.write("hvd-doctor " + json.dumps({"step": step, **facts}, allow_nan=False) + "\n")
    sys.stdout.flush()
def version(name):
    try:
        from importlib.metadata import version
        return version(name)
    except Exception:
        return None
def attempt(step, load, **facts):
    say(step, trying=True, **facts)
    try:
        more = load()
    except BaseException as error:
        say(step, error=type(error).__name__ + ": " + " ".join(str(error).split())[:500], **facts)
    else:
        say(step, **{**facts, **(more or {})})
def load_numpy():
    import numpy
    return {"version": numpy.__version__}
def load_torch():
    import torch
    return {"version": torch.__version__, "cuda": bool(torch.cuda.is_available())}
def load_horovod():
    import horovod
    import horovod.torch as hvd
    if not hasattr(hvd, "init"):
        raise ImportError("it was built without PyTorch")
    return {"version": horovod.__version__, "gloo": bool(hvd.gloo_built()), "nccl": bool(hvd.nccl_built())}
def load_ours():
    import hvd_elastic_ext
    return {"version": hvd_elastic_ext.__version__}
name = socket.gethostname()
try:
    addresses = sorted({info[4][0] for info in socket.getaddrinfo(name, None, socket.AF_INET)})
except OSError:
    addresses = []
def taken():
    path = "/tmp/hvd-elastic-%d" % os.geteuid()
    try:
        facts = os.lstat(path)
    except OSError:
        return ""
    own = facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077
    return "" if own and stat.S_ISDIR(facts.st_mode) else path
say("python", version="%d.%d.%d" % sys.version_info[:3], hostname=name, addresses=addresses, taken=taken())
attempt("hvd-elastic-ext", load_ours, version=version("hvd-elastic-ext"))
attempt("numpy", load_numpy, version=version("numpy"))
attempt("torch", load_torch, version=version("torch"))
attempt("horovod", load_horovod, version=version("horovod"))
say("done")
"""
"""The program that an interpreter reads from standard input. It reports each step before it tries it, so that a crash
can be assigned to a step.
"""


@dataclass(frozen=True, slots=True)
class SshAccess:
    """How hosts are reached, as ``horovodrun`` and ``hvd-elastic run`` do it."""

    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    python: str = field(default=sys.executable)

    def command(self, host: str) -> list[str]:
        """The ssh command for an interpreter on ``host`` that reads its program from standard input.

        Options for the host's key follow the user's configuration of ssh.
        """
        ssh = Ssh(Path.cwd(), self.ssh_port, self.ssh_identity_file, CONNECT_TIMEOUT_S)
        try:
            return ssh.command(host, [self.python, "-"], keys=asyncio.run(host_keys(ssh, host)).options(None))
        except ValueError as error:
            raise UsageError(str(error)) from None


def gather(hosts: Sequence[str], reach: SshAccess, *, directory: Path) -> DoctorFacts:
    """Check this machine and each of ``hosts``; takes as long as the slowest answer."""
    with ThreadPoolExecutor(max_workers=HOSTS_AT_ONCE, thread_name_prefix="hvd-doctor") as pool:
        here = pool.submit(run_probe, [sys.executable, "-"])
        there = [pool.submit(probe_host, host, reach) for host in hosts]
        return DoctorFacts(
            answer=here.result(),
            compiler=next((path for name in ("g++", "c++", "clang++") if (path := shutil.which(name))), None),
            cmake=shutil.which("cmake"),
            ssh=shutil.which("ssh"),
            shared_memory=_size(SHARED_MEMORY),
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            directory=str(directory),
            writable=os.access(directory, os.W_OK | os.X_OK),
            hosts=tuple(each.result() for each in there),
        )


def probe_host(host: str, reach: SshAccess) -> HostFacts:
    """Resolve a host's name and ask its interpreter, over ssh unless the name is this machine's."""
    addresses = resolve(host)
    if addresses and all(map(is_this_machine, addresses)):
        return HostFacts(host, addresses, None)
    return HostFacts(host, addresses, run_probe(reach.command(host)))


def run_probe(command: Sequence[str], *, timeout: float = PROBE_TIMEOUT_S) -> InterpreterReport:
    """Run the probe in the interpreter that ``command`` starts."""
    try:
        done = subprocess.run(
            command, input=PROBE, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        return InterpreterReport(
            steps_in(output.decode(errors="replace") if isinstance(output, bytes) else output), None
        )
    except OSError as error:
        return InterpreterReport({}, 127, f"{command[0]}: {error.strerror}")
    return InterpreterReport(steps_in(done.stdout), done.returncode, _last_line(done.stderr))


def steps_in(text: str) -> Steps:
    """The last report of each step in a probe's output. Other lines, such as output of a shell profile, are ignored."""
    steps: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        if line.startswith("hvd-doctor "):
            try:
                facts = json.loads(line.removeprefix("hvd-doctor "))
                steps[facts.pop("step")] = facts
            except (ValueError, KeyError, AttributeError):
                continue  # cut off: the line before names the step that was tried
    return steps


def resolve(name: str) -> tuple[str, ...]:
    """IPv4 addresses of a name, sorted; empty if it has none."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(sorted({str(info[4][0]) for info in found}))


def _size(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
