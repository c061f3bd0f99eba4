"""``hvd-elastic doctor``: what would break a job here, and how to repair it.

Facts are gathered of this machine and of hosts, and judged apart from that (:func:`judge`, pure): each finding has its
reason and its remedy.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import ipaddress
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.core.publication import parse_hosts_text
from hvd_elastic_ext.io.file_watch import MAX_BYTES
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.user_files import read_given
from hvd_elastic_ext.launcher.agents.transports.ssh import ADD_HOST_KEY, Ssh, host_keys
from hvd_elastic_ext.launcher.job.addresses import is_this_machine

HOROVOD: Final = "0.28.1"
OLDEST_PYTHON: Final = (3, 10)
SMALL_SHARED_MEMORY: Final = 256 * 2**20
FEW_OPEN_FILES: Final = 1024
BUILD: Final = "hvd-elastic build-horovod builds a wheel for the torch that is installed; install it with pip"
BUILD_FOR_BOTH: Final = (
    "hvd-elastic build-horovod --with tensorflow builds a wheel for the torch and the TensorFlow that are installed; "
    "install it with pip"
)
FIRST_WITH_KERAS_3: Final = (2, 16)
"""The TensorFlow that has Keras 2 no longer in it."""
Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``ok``: checked and good; ``note``: for information; ``warning``: breaks some jobs; ``error``: breaks a job."""

    level: Level
    what: str
    why: str = ""
    remedy: str = ""


def judge(facts: DoctorFacts, *, local: bool = False) -> list[Finding]:
    """All findings, in the order in which things are needed.

    ``local``: the job stays on this machine; so it does if all hosts are names of it. Then a problem of jobs on
    several machines is only a note.
    """
    local = local or (bool(facts.hosts) and all(host.answer is None for host in facts.hosts))
    findings = [
        *interpreter(facts.answer),
        *own_name(facts.answer, local=local),
        *building(facts),
        *ssh_client(facts.ssh, needed=any(host.answer is not None for host in facts.hosts), local=local),
        *resources(facts),
    ]
    for host in facts.hosts:
        findings += host_findings(host, facts.answer)
    return findings


def breaks_a_job(findings: Sequence[Finding]) -> bool:
    """True if anything would."""
    return any(finding.level == "error" for finding in findings)


# --- an interpreter and what it can import -------------------------------------------------------


def interpreter(answer: InterpreterReport, *, on: str = "") -> Iterator[Finding]:
    """Python and the libraries of one machine; ``on`` is put before each, ``"h1: "`` or nothing."""
    python = answer.steps.get("python")
    if python is None:
        output = answer.stderr or f"exit code {answer.code}"
        yield Finding("error", f"{on}Python does not run", output, "give the interpreter's absolute path with --python")
        return
    yield _python(str(python["version"]), on=on)
    if taken := python.get("taken"):
        reason = "another user owns it or can enter it; agents use XDG_RUNTIME_DIR or the home directory instead"
        yield Finding("warning", f"{on}{taken} belongs to others too", reason, f"as root: rm -r {taken}")
    for step in ("hvd-elastic-ext", "numpy", "torch", "horovod"):
        if step == "horovod" and step in answer.steps:
            yield from _horovod(answer, on=on)
        elif step in answer.steps:
            yield _library(answer, step, on=on)
        else:  # it follows from an error above, so it is not one itself
            reason = f"the interpreter ended before, in {answer.crashed_in or 'an earlier step'}"
            yield Finding("note", f"{on}{step} was not checked", reason)
    if "tensorflow" in answer.steps:
        yield from _tensorflow(answer, on=on)


def _python(version: str, *, on: str) -> Finding:
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
        return Finding("error", f"{on}Python {version}", "the oldest that works is 3.10", "install a newer Python")
    return Finding("ok", f"{on}Python {version}")


_LIBRARIES: Final = {
    "numpy": ("samplers and Horovod's broadcast_object need it", "pip install numpy"),
    "torch": (None, "pip install torch, before Horovod is built"),
}
"""By library: why it is needed, if the failed import does not say it, and the remedy if it is missing."""


def _library(answer: InterpreterReport, name: str, *, on: str) -> Finding:
    why, version = _failure(answer, name)
    if why is None:
        return Finding("ok", f"{on}{name} {version}")
    if name == "hvd-elastic-ext":
        reason = f"hvd-elastic run starts its agent from it ({why})"
        return Finding("error", f"{on}{name} cannot be imported", reason, "pip install it in this environment")
    if version is None:
        why_needed, remedy = _LIBRARIES[name]
        return Finding("error", f"{on}{name} is not installed", why_needed or why, remedy)
    return Finding("error", f"{on}{name} {version} cannot be imported", why, f"pip install --force-reinstall {name}")


def _horovod(answer: InterpreterReport, *, on: str) -> Iterator[Finding]:
    why, version = _failure(answer, "horovod")
    if version is None:
        reason = "without it a job needs --engine torch, torchrun or mpirun, with elastic.init() in the script"
        yield Finding("warning", f"{on}Horovod is not installed", reason, BUILD)
        return
    if version != HOROVOD:
        reason = f"this release is tested with {HOROVOD} only"
        yield Finding("warning", f"{on}Horovod {version}", reason, BUILD)
    if why is not None:
        if "without PyTorch" in why and _failure(answer, TENSORFLOW) == (None, version):
            reason = "scripts that train with torch need a Horovod for it, too"
            yield Finding("warning", f"{on}Horovod {version} is for TensorFlow alone", reason, BUILD_FOR_BOTH)
            return
        yield Finding("error", f"{on}Horovod {version} cannot be imported", *_why_horovod_fails(answer, why))
        return
    step = answer.steps["horovod"]
    if not step.get("gloo"):
        reason = "elastic jobs form their worlds through Gloo"
        yield Finding("error", f"{on}Horovod {version} has no Gloo", reason, f"HOROVOD_WITH_GLOO=1; {BUILD}")
    elif version == HOROVOD:
        yield Finding("ok", f"{on}Horovod {version} with Gloo, for torch")
        yield from _goes_on(step, version, BUILD, on=on)
    if answer.steps.get("torch", {}).get("cuda") and not step.get("nccl"):
        reason = "there is a CUDA device, and gradients will travel through the CPU"
        yield Finding("warning", f"{on}Horovod has no NCCL", reason, "hvd-elastic build-horovod --cuda")


def _goes_on(step: Mapping[str, Any], version: str, remedy: str, *, on: str) -> Iterator[Finding]:
    """Whether this Horovod goes on after an operation that has failed, which nothing outside of it can mend."""
    if step.get("ends") is False:
        reason = "after a loss other ranks may get the next operation's data: SIGABRT, wrong numbers, or a hang of 8 s"
        yield Finding("warning", f"{on}Horovod {version} goes on after a failed operation", reason, remedy)


def _why_horovod_fails(answer: InterpreterReport, why: str) -> tuple[str, str]:
    remedy = BUILD_FOR_BOTH if TENSORFLOW in answer.steps else BUILD
    torch_broken = _failure(answer, "torch")[0] is not None
    if torch_broken:
        return "torch itself cannot be imported", "repair torch first, then run this command again"
    torch = answer.steps["torch"]["version"]
    if "undefined symbol" in why or "cannot open shared object" in why:
        return f"it was built against another torch than {torch} ({why})", remedy
    if "without PyTorch" in why:
        return "it was built without PyTorch", f"HOROVOD_WITH_PYTORCH=1; {remedy}"
    return why, remedy


def _tensorflow(answer: InterpreterReport, *, on: str) -> Iterator[Finding]:
    """What scripts that train with TensorFlow need, where Horovod and TensorFlow are installed: jobs with torch do not
    suffer, so nothing here is an error."""
    why, version = _failure(answer, "tensorflow")
    if why is not None:
        named = f"TensorFlow {version}" if version else "TensorFlow"  # unknown packages have it, too
        yield Finding("warning", f"{on}{named} cannot be imported", why, "pip install it again")
        return
    release = tuple(int(part) for part in str(version).split(".")[:2])
    no_keras = f"{on}Keras 2 (tf-keras) is not installed"
    keras = f"pip install --no-deps 'tf-keras=={release[0]}.{release[1]}.*', and TF_USE_LEGACY_KERAS=1 for the job"
    why, horovod = _failure(answer, TENSORFLOW)
    if why is not None:
        if "Keras cannot be imported" in why:
            reason = f"TF_USE_LEGACY_KERAS is set here, which takes Keras from there, so Horovod {horovod} finds none"
            yield Finding("warning", no_keras, reason, keras)
            return
        if "has not been built" in why:
            reason = "scripts that train with TensorFlow need that"
            yield Finding("note", f"{on}Horovod {horovod} is not for TensorFlow {version}", reason, BUILD_FOR_BOTH)
            return
        if "undefined symbol" in why or "cannot open shared object" in why:
            why = f"it was built against another TensorFlow ({why})"
        what = f"{on}Horovod {horovod} cannot be imported for TensorFlow {version}"
        yield Finding("warning", what, why, BUILD_FOR_BOTH)
        return
    if answer.steps[TENSORFLOW].get("gloo"):
        yield Finding("ok", f"{on}Horovod {horovod} with Gloo, for TensorFlow {version}")
        if horovod == HOROVOD:
            yield from _goes_on(answer.steps[TENSORFLOW], horovod, BUILD_FOR_BOTH, on=on)
    else:
        reason = "elastic jobs form their worlds through Gloo"
        yield Finding("warning", f"{on}Horovod {horovod} has no Gloo for TensorFlow", reason, BUILD_FOR_BOTH)
    if release < FIRST_WITH_KERAS_3:
        return
    if found := answer.steps["tensorflow"].get("keras"):
        yield Finding("ok", f"{on}Keras 2 (tf-keras {found})", "a job with TF_USE_LEGACY_KERAS=1 uses it")
    else:
        reason = f"TensorFlow {version} has Keras 3, whose optimizers Horovod's DistributedOptimizer does not know"
        yield Finding("warning", no_keras, reason, keras)


def _failure(answer: InterpreterReport, step: str) -> tuple[str | None, str | None]:
    """``(why an import failed or None, the installed version or None)``."""
    facts: Mapping[str, Any] = answer.steps.get(step, {})
    version = facts.get("version")
    if facts.get("trying"):
        if answer.code is None:
            return "the import did not end in time", version
        death = f"signal {-answer.code}" if answer.code < 0 else f"exit code {answer.code}"
        output = f": {answer.stderr}" if answer.stderr else ""
        return f"the import crashed the interpreter ({death}{output})", version
    return facts.get("error"), version


# --- names ----------------------------------------------------------------------------------------


def own_name(answer: InterpreterReport, *, on: str = "", local: bool = False) -> Iterator[Finding]:
    """A machine's own hostname. Gloo resolves it, whichever interface is configured."""
    if "python" not in answer.steps:
        return
    name, addresses = answer.hostname, answer.addresses
    outward = "the address by which other hosts reach it"
    if not addresses:
        reason = "Gloo resolves the machine's own name and crashes when it cannot"
        yield Finding(
            "error",
            f"{on}hostname {name!r} does not resolve",
            reason,
            f"give {name} {outward} in /etc/hosts (127.0.1.1 will do if the job stays on one machine)",
        )
    elif loopback := next((a for a in addresses if ipaddress.ip_address(a).is_loopback), None):
        reason = "in a job over several machines Gloo offers peers this address, and every rank aborts"
        if not local:
            reason += "; jobs on this machine alone are not affected, see --local"
        yield Finding(
            "note" if local else "error",
            f"{on}hostname {name!r} resolves to {loopback}",
            reason,
            f"in /etc/hosts replace {loopback} in the line of {name} by {outward}",
        )
    else:
        yield Finding("ok", f"{on}hostname {name!r} resolves to {', '.join(addresses)}")


# --- tools and resources --------------------------------------------------------------------------


def building(facts: DoctorFacts) -> Iterator[Finding]:
    """Compilers matter only if Horovod is not built yet."""
    missing = [
        (what, package)
        for what, package, path in (("C++ compiler", "g++", facts.compiler), ("CMake", "cmake", facts.cmake))
        if path is None
    ]
    why, version = _failure(facts.answer, "horovod")
    level: Level = "note" if why is None else "warning" if version is None else "error"
    for what, package in missing:
        reason = "only needed to build Horovod" if why is None else "Horovod has to be built, and cannot be without it"
        yield Finding(level, f"no {what}", reason, f"apt-get install {package}")
    if not missing:
        yield Finding("ok", f"C++ compiler {facts.compiler}, CMake {facts.cmake}")


def ssh_client(path: str | None, *, needed: bool, local: bool) -> Iterator[Finding]:
    """The ssh client, which reaches other hosts."""
    if path is not None:
        yield Finding("ok", f"ssh client {path}")
        return
    level: Level = "error" if needed else "note" if local else "warning"
    yield Finding(level, "no ssh client", "other hosts are reached by it", "apt-get install openssh-client")


def resources(facts: DoctorFacts) -> Iterator[Finding]:
    """Shared memory, open files, and a place for the journal."""
    size = facts.shared_memory
    if size is None or size < SMALL_SHARED_MEMORY:
        shown = "missing" if size is None else f"{size / 2**20:.0f} MiB"
        reason = "DataLoader workers pass batches through it, and a bus error kills them when it is full"
        yield Finding(
            "warning", f"{SHARED_MEMORY} is {shown}", reason, "docker run --shm-size=2g; an emptyDir of medium Memory"
        )
    else:
        yield Finding("ok", f"{SHARED_MEMORY} holds {size / 2**20:.0f} MiB")
    if 0 <= facts.open_files < FEW_OPEN_FILES:
        reason = "every rank keeps several connections to every other"
        yield Finding("warning", f"at most {facts.open_files} open files", reason, "ulimit -n 65536")
    else:
        yield Finding("ok", f"at most {facts.open_files if facts.open_files >= 0 else 'any number of'} open files")
    if facts.writable:
        yield Finding("ok", f"journal and state can be written to {facts.directory}")
    else:
        reason = "journal and state are kept in .hvd-elastic here"
        yield Finding("error", f"{facts.directory} cannot be written to", reason, "hvd-elastic run --state-dir DIR")


# --- other hosts ----------------------------------------------------------------------------------

_SSH: Final = (
    ("permission denied", "the host does not take this key", "ssh-copy-id {host}, or name the key with -i"),
    (
        "host key verification failed",
        "its host key is not the one known here, or is not known and your ssh configuration requires a known key",
        "ssh-keygen -R {host} if that change was intended; if it is not known: " + ADD_HOST_KEY,
    ),
    (
        "host identification has changed",
        "its host key is not the one known here",
        "ssh-keygen -R {host} if that is right",
    ),
    ("connection refused", "no sshd listens there", "start sshd on {host}, or give its port with -p"),
    ("timed out", "no answer came in time", "check that {host} is up and that no firewall drops ssh"),
    ("no route to host", "the network does not lead there", "check that {host} is up and on this network"),
    ("could not resolve", "its name does not resolve", "add {host} to DNS or /etc/hosts"),
)


def host_findings(host: HostFacts, here: InterpreterReport) -> Iterator[Finding]:
    """One host of the job: its name, ssh to it, and its versions, compared with those ``here``."""
    on = f"{host.name}: "
    if host.answer is None:
        yield _this_machine(host, here)
        return
    if host.answer.code == 255 and "python" not in host.answer.steps:
        yield _unreachable(host)
        return
    if not host.addresses:
        reason = "only ssh knows it, from its own configuration"
        yield Finding("warning", f"{on}name does not resolve", reason, f"add {host.name} to DNS or /etc/hosts")
    if "python" not in host.answer.steps:
        yield _no_answer(host)
        return
    yield Finding("ok", f"{on}ssh works")
    yield from interpreter(host.answer, on=on)
    yield from own_name(host.answer, on=on)
    yield from differences(host.answer, here, on=on)


def _this_machine(host: HostFacts, here: InterpreterReport) -> Finding:
    loopback = next((a for a in host.addresses if ipaddress.ip_address(a).is_loopback), None)
    if loopback is None or host.name in ("localhost", here.hostname, loopback):
        return Finding("ok", f"{host.name}: is this machine; no ssh is used")
    reason = "so the job would start its processes here, on this machine"
    remedy = f"if it is another machine, give {host.name} its own address in /etc/hosts or DNS"
    return Finding("warning", f"{host.name}: name resolves to {loopback}", reason, remedy)


def differences(there: InterpreterReport, here: InterpreterReport, *, on: str) -> Iterator[Finding]:
    """Versions that must be the same on every host, but differ."""
    for step, name, level, reason in (
        ("horovod", "Horovod", "error", "ranks of different releases do not understand one another"),
        ("hvd-elastic-ext", "hvd-elastic-ext", "error", "launcher and agent are parts of one release"),
        ("torch", "torch", "error", "Horovod and checkpoints are bound to one torch"),
        ("tensorflow", "TensorFlow", "warning", "Horovod is bound to one TensorFlow"),
        (
            "python",
            "Python",
            "warning",
            "Horovod sends objects as pickles, which may not load in another Python",
        ),
    ):
        theirs, ours = (answer.steps.get(step, {}).get("version") for answer in (there, here))
        if step == "python":
            theirs, ours = (str(v).rpartition(".")[0] if v else v for v in (theirs, ours))
        if step == "horovod" and ours and not theirs:
            why = "here it is, and a job with Horovod needs it on every host"
            yield Finding("error", f"{on}has no Horovod", why, BUILD)
        if theirs and ours and theirs != ours:
            what = f"{on}{name} is {theirs}, here it is {ours}"
            yield Finding("error" if level == "error" else "warning", what, reason, f"install {name} {ours} there")


def _unreachable(host: HostFacts) -> Finding:
    assert host.answer is not None
    output = host.answer.stderr
    for symptom, why, remedy in _SSH:
        if symptom in output.lower():
            return Finding("error", f"{host.name}: ssh fails", f"{why} ({output})", remedy.format(host=host.name))
    return Finding("error", f"{host.name}: ssh fails", output or "no output", f"try: ssh -v {host.name} true")


def _no_answer(host: HostFacts) -> Finding:
    assert host.answer is not None
    on, code, output = f"{host.name}: ", host.answer.code, host.answer.stderr
    if code is None:
        return Finding("error", f"{on}ssh connects, but no output comes back", "", f"try: ssh {host.name} true")
    if code in (126, 127):
        remedy = "install the same environment at the same path, or name the interpreter there with --python"
        return Finding("error", f"{on}the interpreter is not there", output, remedy)
    return Finding("error", f"{on}Python does not run (exit code {code})", output, f"try: ssh {host.name} python3 -V")


# --- the facts


SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - measured, not written to
TENSORFLOW: Final = "horovod.tensorflow"
"""The step about Horovod's library for TensorFlow; ``horovod`` is about the one for torch."""
Steps = Mapping[str, Mapping[str, Any]]
"""By name, what an interpreter reports of each thing that it tried."""


@dataclass(frozen=True, slots=True)
class InterpreterReport:
    """What an interpreter reports of itself: the last result of each step, and how it ended.

    ``code`` is its exit code (negative: the signal that ended it, 255: ssh failed, None: it did not end in time).
    ``stderr`` is the last line of its standard error.
    """

    steps: Steps
    code: int | None
    stderr: str = ""

    @property
    def crashed_in(self) -> str | None:
        """The step in which it crashed; None if it did not."""
        return next((name for name, facts in self.steps.items() if facts.get("trying")), None)

    @property
    def hostname(self) -> str:
        """The machine's own hostname; empty if the interpreter did not report it."""
        return str(self.steps.get("python", {}).get("hostname", ""))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the machine's own hostname; empty if it does not resolve."""
        return tuple(self.steps.get("python", {}).get("addresses", ()))


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host of the job as seen from here. ``answer`` is None for names of this machine: no ssh is needed."""

    name: str
    addresses: tuple[str, ...]
    answer: InterpreterReport | None


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """All facts for findings. Sizes are in bytes. None: unknown."""

    answer: InterpreterReport
    compiler: str | None
    cmake: str | None
    ssh: str | None
    shared_memory: int | None
    open_files: int
    directory: str
    writable: bool
    hosts: tuple[HostFacts, ...] = ()


# --- how they are gathered


CONNECT_TIMEOUT_S: Final = 5
PROBE_TIMEOUT_S: Final = 90.0
"""Importing torch from a cold network file system may take this long; a hung host must not take longer."""
HOSTS_AT_ONCE: Final = 16


PROBE: Final = r"""
import sys
if not sys.path[0]:  # the current directory: a json.py there is not Python's
    del sys.path[0]
import importlib.util, json, os, socket, stat
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
    return {
        "version": horovod.__version__, "gloo": bool(hvd.gloo_built()), "nccl": bool(hvd.nccl_built()),
        "ends": ends_after_failure(hvd),
    }
def ends_after_failure(hvd):
    folder = os.path.dirname(hvd.__file__)
    try:
        libraries = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("mpi_lib")]
        for path in libraries:
            with open(path, "rb") as library:
                if b"an operation has failed: " not in library.read():
                    return False
    except OSError:
        return None
    return True if libraries else None
def load_tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its own chatter is not why it fails
    import tensorflow
    return {"version": tensorflow.__version__}
def load_horovod_tensorflow():
    import horovod
    import horovod.tensorflow as hvd
    return {"version": horovod.__version__, "gloo": bool(hvd.gloo_built()), "ends": ends_after_failure(hvd)}
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
if all(map(importlib.util.find_spec, ("horovod", "tensorflow"))):  # its import takes seconds
    found = version("tensorflow") or version("tensorflow-cpu")
    attempt("tensorflow", load_tensorflow, version=found, keras=version("tf-keras"))
    attempt("horovod.tensorflow", load_horovod_tensorflow, version=version("horovod"))
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


# --- the command


LEFT_OUT: Final = (
    "not checked: what only a job on several machines needs; name them with --host HOST or --hosts-file PATH"
)
STYLES: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def main(argv: Sequence[str]) -> int:
    """Check and report. Return 0 if nothing would break a job, 1 if something would, 2 for wrong usage."""
    options = build_parser().parse_args(list(argv))
    hosts = wanted_hosts(options.host, options.hosts_file)
    reach = SshAccess(options.ssh_port, options.ssh_identity_file, options.python)
    alone = is_alone(hosts, os.environ)
    findings = judge(gather(hosts, reach, directory=Path.cwd()), local=options.local or alone)
    report(findings, sys.stdout, as_json=options.json, left_out=LEFT_OUT if alone and not options.local else "")
    return 1 if breaks_a_job(findings) else 0


def is_alone(hosts: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether nothing says that jobs here need other machines: no host is named, and this is not a pod of a cluster.
    Pure."""
    return not hosts and not environ.get("KUBERNETES_SERVICE_HOST")


def build_parser() -> argparse.ArgumentParser:
    """All options, documented."""
    parser = Parser(
        prog="hvd-elastic doctor",
        description="Check this machine, and the given hosts, for what would break a job, and print the remedies. "
        "Nothing is changed. Exit code 0: nothing would break a job; 1: something would.",
    )
    parser.add_argument("--host", action="append", default=[], metavar="HOST", help="check this host too (repeatable)")
    parser.add_argument("--hosts-file", metavar="PATH", help="check each host of a file of host:slots lines")
    parser.add_argument(
        "--local",
        action="store_true",
        help="the job stays on this machine: needs of others are notes (default if no host is named, but in a pod)",
    )
    parser.add_argument(
        "-p", "--ssh-port", type=int, metavar="PORT", help="port of sshd on the hosts (default: ssh's own)"
    )
    parser.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key to use (default: ssh's own)")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="interpreter on the hosts (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def wanted_hosts(named: Sequence[str], hosts_file: str | None) -> tuple[str, ...]:
    """The hosts to look at, each once. Raises :class:`UsageError` or :class:`BadHosts` for what is not a host name."""
    for name in named:
        problem = name_error(name)
        if problem is not None:
            raise UsageError(f"--host: {problem}")
    listed: tuple[str, ...] = ()
    if hosts_file is not None:
        try:
            text = read_given(hosts_file, most=MAX_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(
                f"--hosts-file {hosts_file} cannot be read: {why}; name a text file of host:slots lines"
            ) from None
        listed = parse_hosts_text(text, where=hosts_file, default_slots=1).names
    return tuple(dict.fromkeys([*named, *listed]))


def report(findings: Sequence[Finding], out: TextIO, *, as_json: bool, left_out: str = "") -> None:
    """Write JSON, a table on a terminal, or plain lines. ``left_out``: what was not checked, in one line."""
    if as_json:
        document: dict[str, Any] = {
            "ok": not breaks_a_job(findings),
            "findings": [dataclasses.asdict(f) for f in findings],
            **({"left_out": left_out} if left_out else {}),
        }
        out.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return
    if out.isatty():
        _table(findings, out)
    else:
        out.write("".join(plain(finding) + "\n" for finding in findings) + summary(findings) + "\n")
    out.write(f"{left_out}\n" if left_out else "")


def plain(finding: Finding) -> str:
    """One line."""
    parts = [f"{finding.level:<8}{finding.what}"]
    if finding.why:
        parts.append(finding.why)
    if finding.remedy:
        parts.append(f"remedy: {finding.remedy}")
    return "; ".join(parts)


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    count = {level: sum(f.level == level for f in findings) for level in STYLES}
    if count["error"]:
        return f"{_counted(count['error'], 'thing')} would break a job"
    return "nothing here would break a job" + (f"; {_counted(count['warning'], 'warning')}" if count["warning"] else "")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _table(findings: Sequence[Finding], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for f in findings:
        text = Text(f.what)
        if f.why:
            text.append(f"\n{f.why}", "dim")
        if f.remedy:
            text.append(f"\nremedy: {f.remedy}")
        table.add_row(Text(f.level, STYLES[f.level]), text)
    console = Console(file=out)
    console.print(table)
    console.print(Text(summary(findings), STYLES["error" if breaks_a_job(findings) else "ok"]))
