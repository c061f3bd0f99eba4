"""What follows from the facts: findings, each with its reason and its remedy. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hvd_elastic_ext.launcher.agents.transports.ssh import ADD_HOST_KEY
from hvd_elastic_ext.launcher.cli.doctor.facts import SHARED_MEMORY, DoctorFacts, HostFacts, InterpreterReport

HOROVOD: Final = "0.28.1"
OLDEST_PYTHON: Final = (3, 10)
SMALL_SHARED_MEMORY: Final = 256 * 2**20
FEW_OPEN_FILES: Final = 1024

BUILD: Final = "hvd-elastic build-horovod builds a wheel for the torch that is installed; install it with pip"

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
    """Python, numpy, torch and Horovod of one machine; ``on`` is put before each, ``"h1: "`` or nothing."""
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
        else:  # it follows from an error above, so it is none itself
            reason = f"the interpreter ended before, in {answer.crashed_in or 'an earlier step'}"
            yield Finding("note", f"{on}{step} was not checked", reason)


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
        reason = "without it a job needs --engine torchrun or mpirun, with elastic.init() in the script"
        yield Finding("warning", f"{on}Horovod is not installed", reason, BUILD)
        return
    if version != HOROVOD:
        reason = f"this release is tested with {HOROVOD} only"
        yield Finding("warning", f"{on}Horovod {version}", reason, BUILD)
    if why is not None:
        yield Finding("error", f"{on}Horovod {version} cannot be imported", *_why_horovod_fails(answer, why))
        return
    step = answer.steps["horovod"]
    if not step.get("gloo"):
        reason = "elastic jobs form their worlds through Gloo"
        yield Finding("error", f"{on}Horovod {version} has no Gloo", reason, f"HOROVOD_WITH_GLOO=1; {BUILD}")
    elif version == HOROVOD:
        yield Finding("ok", f"{on}Horovod {version} with Gloo")
    if answer.steps.get("torch", {}).get("cuda") and not step.get("nccl"):
        reason = "there is a CUDA device, and gradients will travel through the CPU"
        yield Finding("warning", f"{on}Horovod has no NCCL", reason, "hvd-elastic build-horovod --cuda")


def _why_horovod_fails(answer: InterpreterReport, why: str) -> tuple[str, str]:
    torch_broken = _failure(answer, "torch")[0] is not None
    if torch_broken:
        return "torch itself cannot be imported", "repair torch first, then run this command again"
    torch = answer.steps["torch"]["version"]
    if "undefined symbol" in why or "cannot open shared object" in why:
        return f"it was built against another torch than {torch} ({why})", BUILD
    if "without PyTorch" in why:
        return "it was built without PyTorch", f"HOROVOD_WITH_PYTORCH=1; {BUILD}"
    return why, BUILD


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
