"""Each thing that breaks a job has a finding with a reason and a remedy; nothing else does."""

import dataclasses

import pytest

from hvd_elastic_ext.launcher.cli.doctor.facts import Answer, Facts, HostFacts
from hvd_elastic_ext.launcher.cli.doctor.findings import breaks_a_job, judge

STEPS = {
    "python": {"version": "3.11.7", "hostname": "node1", "addresses": ["10.0.0.1"]},
    "numpy": {"version": "2.4.6"},
    "torch": {"version": "2.13.0", "cuda": False},
    "horovod": {"version": "0.28.1", "gloo": True, "nccl": False},
    "hvd-elastic-ext": {"version": "0.1.0"},
    "done": {},
}


def answer(code=0, stderr="", **changes):
    """A healthy interpreter's answer, with some steps changed; a step of None was never reached."""
    steps = {step: {**facts, **(changes.get(step) or {})} for step, facts in STEPS.items()}
    return Answer({s: f for s, f in steps.items() if changes.get(s, {}) is not None}, code, stderr)


def without(*steps, code=0, stderr="", trying=None, **changes):
    changed = answer(code, stderr, **changes, **dict.fromkeys(steps))
    return (
        changed
        if trying is None
        else Answer({**changed.steps, trying: {"trying": True, "version": STEPS[trying]["version"]}}, code, stderr)
    )


HEALTHY = Facts(
    answer=answer(),
    compiler="/usr/bin/g++",
    cmake="/usr/bin/cmake",
    ssh="/usr/bin/ssh",
    shared_memory=2**31,
    open_files=65536,
    directory="/job",
    writable=True,
)


def facts(**changes):
    return dataclasses.replace(HEALTHY, **changes)


def hosted(name="h1", addresses=("10.0.0.2",), said=None):
    there = {"hostname": name, "addresses": list(addresses)}
    return facts(hosts=(HostFacts(name, addresses, said or answer(python=there)),))


def the_one(found):
    """The only finding that is not ``ok``."""
    (finding,) = [f for f in found if f.level != "ok"]
    return finding


def test_a_healthy_machine_has_nothing_to_complain_of():
    found = judge(HEALTHY)
    assert {f.level for f in found} == {"ok"}
    assert not breaks_a_job(found)
    assert not any(f.remedy for f in found)


NOT_INSTALLED = {"version": None, "error": "ModuleNotFoundError: No module named 'x'"}

BROKEN = [
    # what is wrong, level, words of the finding, words of its reason, words of its remedy
    ({"answer": answer(python={"version": "3.9.2"})}, "error", "Python 3.9.2", "3.10", "newer Python"),
    (
        {"answer": answer(python={"taken": "/tmp/hvd-elastic-0"})},
        "warning",
        "/tmp/hvd-elastic-0 is not ours alone",
        "home directory instead",
        "rm -r /tmp/hvd-elastic-0",
    ),
    (
        {"answer": answer(numpy=NOT_INSTALLED)},
        "error",
        "numpy is not installed",
        "broadcast_object",
        "pip install numpy",
    ),
    (
        {"answer": answer(numpy={"error": "ImportError: libopenblas"})},
        "error",
        "numpy 2.4.6 cannot be imported",
        "libopenblas",
        "numpy",
    ),
    ({"answer": answer(torch=NOT_INSTALLED)}, "error", "torch is not installed", "No module", "pip install torch"),
    (
        {"answer": answer(torch={"error": "OSError: libcudart"})},
        "error",
        "torch 2.13.0 cannot be imported",
        "libcudart",
        "torch",
    ),
    (
        {"answer": answer(horovod=NOT_INSTALLED)},
        "error",
        "Horovod is not installed",
        "nothing can be trained",
        "scripts/build-horovod",
    ),
    (
        {"answer": answer(horovod={"version": "0.27.0"})},
        "warning",
        "Horovod 0.27.0",
        "made for 0.28.1",
        "horovod==0.28.1",
    ),
    (
        {"answer": answer(horovod={"error": "ImportError: mpi_lib_v2.so: undefined symbol: _ZN3c10"})},
        "error",
        "Horovod 0.28.1 cannot be imported",
        "built against another torch than 2.13.0",
        "scripts/build-horovod",
    ),
    (
        {"answer": answer(horovod={"error": "ImportError: it was built without PyTorch"})},
        "error",
        "Horovod 0.28.1 cannot be imported",
        "without PyTorch",
        "HOROVOD_WITH_PYTORCH=1",
    ),
    (
        {"answer": answer(horovod={"error": "ValueError: odd"})},
        "error",
        "cannot be imported",
        "ValueError: odd",
        "build-horovod",
    ),
    ({"answer": answer(horovod={"gloo": False})}, "error", "has no Gloo", "through Gloo", "HOROVOD_WITH_GLOO=1"),
    ({"answer": answer(torch={"cuda": True})}, "warning", "no NCCL", "through the CPU", "--cuda"),
    (
        {"answer": without("done", code=-11, trying="horovod")},
        "error",
        "Horovod 0.28.1 cannot be imported",
        "signal 11",
        "scripts/build-horovod",
    ),
    (
        {"answer": without("done", code=None, trying="horovod")},
        "error",
        "cannot be imported",
        "did not end in time",
        "build",
    ),
    (
        {"answer": answer(**{"hvd-elastic-ext": {"error": "ModuleNotFoundError: x"}})},
        "error",
        "hvd-elastic-ext cannot be imported",
        "agent",
        "pip",
    ),
    (
        {"answer": answer(python={"addresses": ["127.0.1.1"]})},
        "error",
        "hostname 'node1' resolves to 127.0.1.1",
        "every rank aborts",
        "/etc/hosts replace 127.0.1.1",
    ),
    (
        {"answer": answer(python={"addresses": ["10.0.0.1", "127.0.0.1"]})},
        "error",
        "resolves to 127.0.0.1",
        "every rank aborts",
        "/etc/hosts",
    ),
    ({"answer": answer(python={"addresses": []})}, "error", "does not resolve", "crashes", "/etc/hosts"),
    ({"compiler": None}, "note", "no C++ compiler", "only needed to build", "apt-get install g++"),
    ({"cmake": None}, "note", "no CMake", "only needed to build", "apt-get install cmake"),
    ({"ssh": None}, "warning", "no ssh client", "other hosts", "apt-get install openssh-client"),
    ({"shared_memory": 64 * 2**20}, "warning", "/dev/shm is 64 MiB", "bus error", "--shm-size"),
    ({"shared_memory": None}, "warning", "/dev/shm is missing", "bus error", "--shm-size"),
    ({"open_files": 256}, "warning", "at most 256 open files", "connections", "ulimit -n"),
    ({"writable": False}, "error", "/job cannot be written to", "journal", "--state-dir"),
]


@pytest.mark.parametrize(
    ("change", "level", "what", "why", "remedy"), BROKEN, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_is_wrong_here_is_named_with_reason_and_remedy(change, level, what, why, remedy):
    found = judge(facts(**change))
    finding = the_one(found)
    assert finding.level == level
    assert what in finding.what
    assert why in finding.why
    assert remedy in finding.remedy
    assert breaks_a_job(found) == (level == "error")


def test_a_crash_in_torch_is_blamed_on_torch_and_what_came_after_was_not_looked_at():
    found = judge(facts(answer=without("horovod", "done", code=-4, trying="torch")))
    torch, horovod = [f for f in found if f.level != "ok"]
    assert (torch.level, horovod.level) == ("error", "note")
    assert "torch 2.13.0 cannot be imported" in torch.what
    assert "signal 4" in torch.why
    assert horovod.what == "horovod was not looked at"
    assert "torch" in horovod.why


def test_a_broken_torch_explains_a_broken_horovod():
    broken = answer(torch={"error": "OSError: x"}, horovod={"error": "OSError: x"})
    horovod = next(f for f in judge(facts(answer=broken)) if f.what.startswith("Horovod"))
    assert horovod.remedy == "mend torch first, then look again"


def test_a_compiler_is_an_error_only_where_horovod_has_to_be_built():
    found = judge(facts(compiler=None, answer=answer(horovod=NOT_INSTALLED)))
    assert [f.level for f in found if "compiler" in f.what] == ["error"]


@pytest.mark.parametrize(("addresses", "level"), [(["127.0.1.1"], "note"), ([], "error")])
def test_a_job_that_stays_here_minds_only_a_name_that_does_not_resolve_at_all(addresses, level):
    found = judge(facts(answer=answer(python={"addresses": addresses})), local=True)
    assert the_one(found).level == level


def test_ssh_is_needed_as_soon_as_another_host_is_named():
    found = judge(dataclasses.replace(hosted(), ssh=None))
    assert the_one(found).level == "error"
    assert the_one(judge(facts(ssh=None), local=True)).level == "note"


def test_an_interpreter_that_does_not_run_is_the_only_finding_about_it():
    found = judge(facts(answer=Answer({}, 127, "python: No such file")))
    assert [f.what for f in found if f.level == "error"] == ["Python does not run"]


# --- other hosts ------------------------------------------------------------------------------------


def test_a_healthy_host_has_nothing_to_complain_of():
    found = judge(hosted())
    assert {f.level for f in found} == {"ok"}
    assert "h1: ssh works" in [f.what for f in found]


def test_a_host_that_is_this_machine_needs_no_ssh():
    assert "no ssh is used" in judge(facts(hosts=(HostFacts("localhost", ("127.0.0.1",), None),)))[-1].what


def test_another_name_that_resolves_to_loopback_is_named_since_its_processes_would_run_here():
    finding = the_one(judge(facts(hosts=(HostFacts("h1", ("127.0.1.1",), None),))))
    assert finding.level == "warning"
    assert finding.what == "h1: name resolves to 127.0.1.1"


SSH_FAILURES = [
    ("root@h1: Permission denied (publickey).", "ssh-copy-id h1"),
    ("ssh: connect to host h1 port 22: Connection refused", "start sshd on h1"),
    ("ssh: connect to host h1 port 22: Connection timed out", "is up"),
    ("ssh: connect to host h1 port 22: No route to host", "is up"),
    ("ssh: Could not resolve hostname h1: Name or service not known", "add h1 to DNS"),
    ("Host key verification failed.", "ssh-keygen -R h1"),
    ("something unheard of", "ssh -v h1 true"),
]


@pytest.mark.parametrize(("said", "remedy"), SSH_FAILURES)
def test_an_ssh_that_fails_is_named_with_what_it_said(said, remedy):
    finding = the_one(judge(hosted(said=Answer({}, 255, said))))
    assert finding.level == "error"
    assert finding.what == "h1: ssh fails"
    assert said in finding.why
    assert remedy in finding.remedy


def test_a_host_that_connects_and_never_answers_is_named():
    finding = the_one(judge(hosted(said=Answer({}, None))))
    assert "nothing comes back" in finding.what


def test_a_missing_interpreter_there_is_named():
    finding = the_one(judge(hosted(said=Answer({}, 127, "bash: /opt/python: No such file or directory"))))
    assert "interpreter is not there" in finding.what
    assert "/opt/python" in finding.why
    assert "--python" in finding.remedy


@pytest.mark.parametrize(
    ("step", "version", "level", "what"),
    [
        ("horovod", "0.28.0", "error", "h1: Horovod is 0.28.0, here it is 0.28.1"),
        ("hvd-elastic-ext", "0.0.9", "error", "h1: hvd-elastic-ext is 0.0.9, here it is 0.1.0"),
        ("torch", "2.12.0", "error", "h1: torch is 2.12.0, here it is 2.13.0"),
        ("python", "3.12.1", "warning", "h1: Python is 3.12, here it is 3.11"),
    ],
)
def test_versions_that_differ_are_named_with_both(step, version, level, what):
    there = answer(**{"python": {"hostname": "h1", "addresses": ["10.0.0.2"]}, step: {"version": version}})
    finding = next(f for f in judge(hosted(said=there)) if f.what == what)
    assert finding.level == level
    assert "there" in finding.remedy


def test_a_later_patch_release_of_python_there_is_no_difference():
    there = answer(python={"hostname": "h1", "addresses": ["10.0.0.2"], "version": "3.11.9"})
    assert {f.level for f in judge(hosted(said=there))} == {"ok"}


def test_a_host_that_takes_its_own_name_for_loopback_is_named_even_for_a_healthy_launcher():
    there = answer(python={"hostname": "h1", "addresses": ["127.0.1.1"]})
    finding = the_one(judge(hosted(said=there)))
    assert finding.level == "error"
    assert finding.what == "h1: hostname 'h1' resolves to 127.0.1.1"
    assert "127.0.1.1" in finding.remedy


def test_a_host_known_to_ssh_alone_is_a_warning():
    there = answer(python={"hostname": "h1", "addresses": ["10.0.0.2"]})
    finding = the_one(judge(hosted(addresses=(), said=there)))
    assert finding.level == "warning"
    assert "name does not resolve" in finding.what
