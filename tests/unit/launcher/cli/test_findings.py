"""Each cause that breaks a job has a finding with a reason and a remedy; nothing else has one."""

import dataclasses

import pytest

from hvd_elastic_ext.launcher.cli.doctor import DoctorFacts, HostFacts, InterpreterReport, breaks_a_job, judge

STEPS = {
    "python": {"version": "3.11.7", "hostname": "node1", "addresses": ["10.0.0.1"]},
    "numpy": {"version": "2.4.6"},
    "torch": {"version": "2.13.0", "cuda": False},
    "horovod": {"version": "0.28.1", "gloo": True, "nccl": False, "ends": True},
    "hvd-elastic-ext": {"version": "0.1.0"},
    "done": {},
}


def answer(code=0, stderr="", **changes):
    """The answer of a healthy interpreter, with some steps changed. A step of None was not reached."""
    steps = {step: {**facts, **(changes.get(step) or {})} for step, facts in STEPS.items()}
    return InterpreterReport({s: f for s, f in steps.items() if changes.get(s, {}) is not None}, code, stderr)


def without(*steps, code=0, stderr="", trying=None, **changes):
    changed = answer(code, stderr, **changes, **dict.fromkeys(steps))
    return (
        changed
        if trying is None
        else InterpreterReport(
            {**changed.steps, trying: {"trying": True, "version": STEPS[trying]["version"]}}, code, stderr
        )
    )


def with_tensorflow(tensorflow=(), library=(), **changes):
    """The answer of a healthy interpreter that has TensorFlow, too, with some facts changed."""
    steps = answer(**changes).steps
    more = {
        "tensorflow": {"version": "2.21.0", "keras": "2.21.1", **dict(tensorflow)},
        "horovod.tensorflow": {"version": "0.28.1", "gloo": True, "ends": True, **dict(library)},
    }
    return InterpreterReport({**steps, **more}, 0)


HEALTHY = DoctorFacts(
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


H1 = answer(python={"hostname": "h1", "addresses": ["10.0.0.2"]})
H1_LOOPBACK = answer(python={"hostname": "h1", "addresses": ["127.0.1.1"]})


def the_one(found):
    """Return the only finding that is not ``ok``."""
    (finding,) = [f for f in found if f.level != "ok"]
    return finding


def test_a_healthy_machine_has_nothing_to_complain_of():
    found = judge(HEALTHY)
    assert {f.level for f in found} == {"ok"}
    assert not breaks_a_job(found)
    assert not any(f.remedy for f in found)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.15.1", ["Horovod 0.28.1 with Gloo, for TensorFlow 2.15.1"]),
        ("2.16.0", ["Horovod 0.28.1 with Gloo, for TensorFlow 2.16.0", "Keras 2 (tf-keras 2.21.1)"]),
        (None, []),
    ],
)
def test_horovods_libraries_have_a_line_each_and_keras_2_has_one_where_tensorflow_lacks_it(version, said):
    known = with_tensorflow({"version": version}) if version else answer()
    what = [f.what for f in judge(facts(answer=known)) if f.level == "ok"]
    assert [each for each in what if "Horovod" in each or "Keras" in each] == [
        "Horovod 0.28.1 with Gloo, for torch",
        *said,
    ]


NOT_INSTALLED = {"version": None, "error": "ModuleNotFoundError: No module named 'x'"}


def broken(**steps):
    return facts(answer=answer(**steps))


# level | words of the finding | of its reason | of its remedy: the facts. Local: the job stays on this machine.
BROKEN = {
    "error | Python 3.9.2 | 3.10 | newer Python": broken(python={"version": "3.9.2"}),
    "warning | /tmp/hvd-elastic-0 belongs to others too | home directory | rm -r /tmp/hvd": broken(
        python={"taken": "/tmp/hvd-elastic-0"}
    ),
    "error | numpy is not installed | broadcast_object | pip install numpy": broken(numpy=NOT_INSTALLED),
    "error | numpy 2.4.6 cannot be imported | libopenblas | numpy": broken(numpy={"error": "ImportError: libopenblas"}),
    "error | torch is not installed | No module | pip install torch": broken(torch=NOT_INSTALLED),
    "error | torch 2.13.0 cannot be imported | libcudart | torch": broken(torch={"error": "OSError: libcudart"}),
    "warning | Horovod is not installed | --engine torch, torchrun | build-horovod": broken(horovod=NOT_INSTALLED),
    "warning | Horovod 0.27.0 | tested with 0.28.1 only | build-horovod": broken(horovod={"version": "0.27.0"}),
    "error | Horovod 0.28.1 cannot be imported | built against another torch than 2.13.0 | build-horovod": broken(
        horovod={"error": "ImportError: x.so: undefined symbol: _Z"}
    ),
    "error | Horovod 0.28.1 cannot be imported | without PyTorch | HOROVOD_WITH_PYTORCH=1": broken(
        horovod={"error": "ImportError: it was built without PyTorch"}
    ),
    "error | cannot be imported | ValueError: odd | build-horovod": broken(horovod={"error": "ValueError: odd"}),
    "error | has no Gloo | through Gloo | HOROVOD_WITH_GLOO=1": broken(horovod={"gloo": False}),
    "warning | Horovod 0.28.1 goes on after a failed operation | SIGABRT | build-horovod": broken(
        horovod={"ends": False}
    ),
    "warning | Horovod 0.28.1 goes on after a failed operation | a hang of 8 s | --with tensorflow": facts(
        answer=with_tensorflow(library={"ends": False})
    ),
    "warning | TensorFlow 2.21.0 cannot be imported | libtensorflow | pip": facts(
        answer=with_tensorflow({"error": "ImportError: libtensorflow"})
    ),
    "note | Horovod 0.28.1 is not for TensorFlow 2.21.0 | scripts that train with | --with tensorflow": facts(
        answer=with_tensorflow(library={"error": "ImportError: Extension horovod.tensorflow has not been built: x.so"})
    ),
    "warning | Horovod 0.28.1 cannot be imported for TensorFlow 2.21.0 | another TensorFlow | --with tensorflow": facts(
        answer=with_tensorflow(library={"error": "NotFoundError: mpi_lib.so: undefined symbol: _Z"})
    ),
    "warning | Horovod 0.28.1 has no Gloo for TensorFlow | through Gloo | --with tensorflow": facts(
        answer=with_tensorflow(library={"gloo": False})
    ),
    "warning | Keras 2 (tf-keras) is not installed | Keras 3 | --no-deps 'tf-keras==2.21.*'": facts(
        answer=with_tensorflow({"keras": None})
    ),
    "warning | Keras 2 (tf-keras) is not installed | LEGACY_KERAS is set here | --no-deps 'tf-keras==2.15.*'": facts(
        answer=with_tensorflow(
            {"version": "2.15.1", "keras": None}, {"error": "ImportError: Keras cannot be imported. Check that"}
        )
    ),
    "warning | Horovod 0.28.1 is for TensorFlow alone | train with torch | --with tensorflow": facts(
        answer=with_tensorflow(horovod={"error": "ImportError: it was built without PyTorch"})
    ),
    "error | Horovod 0.28.1 cannot be imported | built against another torch | --with tensorflow": facts(
        answer=with_tensorflow(horovod={"error": "ImportError: x.so: undefined symbol: _Z"})
    ),
    "warning | no NCCL | through the CPU | --cuda": broken(torch={"cuda": True}),
    "error | Horovod 0.28.1 cannot be imported | signal 11 | build": facts(
        answer=without("done", code=-11, trying="horovod")
    ),
    "error | cannot be imported | did not end in time | build": facts(
        answer=without("done", code=None, trying="horovod")
    ),
    "error | hvd-elastic-ext cannot be imported | agent | pip": broken(
        **{"hvd-elastic-ext": {"error": "ModuleNotFoundError: x"}}
    ),
    "error | resolves to 127.0.1.1 | every rank aborts | /etc/hosts replace 127.0.1.1": broken(
        python={"addresses": ["127.0.1.1"]}
    ),
    "error | resolves to 127.0.0.1 | every rank aborts | /etc/hosts": broken(
        python={"addresses": ["10.0.0.1", "127.0.0.1"]}
    ),
    "error | does not resolve | crashes | /etc/hosts": broken(python={"addresses": []}),
    "note | no C++ compiler | only needed to build | apt-get install g++": facts(compiler=None),
    "note | no CMake | only needed to build | apt-get install cmake": facts(cmake=None),
    "warning | no ssh client | other hosts | apt-get install openssh-client": facts(ssh=None),
    "warning | /dev/shm is 64 MiB | bus error | --shm-size": facts(shared_memory=64 * 2**20),
    "warning | /dev/shm is missing | bus error | --shm-size": facts(shared_memory=None),
    "warning | at most 256 open files | connections | ulimit -n": facts(open_files=256),
    "error | /job cannot be written to | journal | --state-dir": facts(writable=False),
    "local note | resolves to 127.0.1.1 | aborts | /etc/hosts": broken(python={"addresses": ["127.0.1.1"]}),
    "local error | hostname 'node1' does not resolve | crashes | /etc/hosts": broken(python={"addresses": []}),
    "local note | no ssh client | other hosts | openssh-client": facts(ssh=None),
    "error | no ssh client | other hosts | openssh-client": dataclasses.replace(hosted(), ssh=None),
    "warning | h1: name resolves to 127.0.1.1 | start its processes here | own address": facts(
        hosts=(HostFacts("h1", ("127.0.1.1",), None),)
    ),
    "error | h1: ssh connects, but no output comes back |  | ssh h1 true": hosted(said=InterpreterReport({}, None)),
    "error | h1: the interpreter is not there | /opt/python | --python": hosted(
        said=InterpreterReport({}, 127, "/opt/python: No such file")
    ),
    "error | h1: hostname 'h1' resolves to 127.0.1.1 | aborts | 127.0.1.1": hosted(said=H1_LOOPBACK),
    "warning | h1: name does not resolve | only ssh | add h1": hosted(addresses=(), said=H1),
}


@pytest.mark.parametrize(("expected", "known"), BROKEN.items(), ids=BROKEN)
def test_what_is_wrong_is_named_with_reason_and_remedy(expected, known):
    found = judge(known, local=expected.startswith("local "))
    finding = the_one(found)
    level, *words = expected.removeprefix("local ").split(" | ")
    assert finding.level == level
    assert all(word in part for word, part in zip(words, (finding.what, finding.why, finding.remedy), strict=True))
    assert breaks_a_job(found) == (level == "error")


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("root@h1: Permission denied (publickey).", "ssh-copy-id h1"),
        ("ssh: connect to host h1 port 22: Connection refused", "start sshd on h1"),
        ("ssh: connect to host h1 port 22: Connection timed out", "is up"),
        ("ssh: connect to host h1 port 22: No route to host", "is up"),
        ("ssh: Could not resolve hostname h1: Name or service not known", "add h1 to DNS"),
        ("Host key verification failed.", "ssh-keygen -R h1"),
        ("something unheard of", "ssh -v h1 true"),
    ],
)
def test_an_ssh_that_fails_is_named_with_what_it_said(said, remedy):
    finding = the_one(judge(hosted(said=InterpreterReport({}, 255, said))))
    assert (finding.level, finding.what) == ("error", "h1: ssh fails")
    assert said in finding.why
    assert remedy in finding.remedy


def test_a_crash_in_torch_is_blamed_on_torch_and_what_came_after_was_not_looked_at():
    found = judge(facts(answer=without("horovod", "done", code=-4, trying="torch")))
    torch, horovod = [f for f in found if f.level != "ok"]
    assert (torch.level, horovod.level) == ("error", "note")
    assert "torch 2.13.0 cannot be imported" in torch.what
    assert "signal 4" in torch.why
    assert horovod.what == "horovod was not checked"
    assert "torch" in horovod.why


def test_a_broken_torch_explains_a_broken_horovod():
    broken = answer(torch={"error": "OSError: x"}, horovod={"error": "OSError: x"})
    horovod = next(f for f in judge(facts(answer=broken)) if f.what.startswith("Horovod"))
    assert horovod.remedy == "repair torch first, then run this command again"


@pytest.mark.parametrize(
    ("horovod", "level"), [(NOT_INSTALLED, "warning"), ({"error": "ImportError: undefined symbol"}, "error")]
)
def test_a_compiler_matters_only_where_horovod_has_to_be_built(horovod, level):
    found = judge(facts(compiler=None, answer=answer(horovod=horovod)))
    assert [f.level for f in found if "compiler" in f.what] == [level]


def test_an_interpreter_that_does_not_run_is_the_only_finding_about_it():
    found = judge(facts(answer=InterpreterReport({}, 127, "python: No such file")))
    assert [f.what for f in found if f.level == "error"] == ["Python does not run"]


# --- other hosts ------------------------------------------------------------------------------------


def test_a_healthy_host_has_nothing_to_complain_of():
    found = judge(hosted())
    assert {f.level for f in found} == {"ok"}
    assert "h1: ssh works" in [f.what for f in found]


def test_a_host_that_is_this_machine_needs_no_ssh():
    assert "no ssh is used" in judge(facts(hosts=(HostFacts("localhost", ("127.0.0.1",), None),)))[-1].what


def test_a_loopback_name_breaks_no_job_whose_hosts_are_all_this_machine():
    here = HostFacts("node1", ("127.0.1.1",), None)
    there = HostFacts("h1", ("10.0.0.2",), H1)
    loopback = answer(python={"addresses": ["127.0.1.1"]})
    levels = [
        next(f.level for f in judge(facts(answer=loopback, hosts=hosts)) if "'node1' resolves to" in f.what)
        for hosts in ((), (here,), (here, there))
    ]
    assert levels == ["error", "note", "error"]


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


def test_another_tensorflow_on_a_host_is_named_with_both_versions():
    there = with_tensorflow({"version": "2.15.1"}, python={"hostname": "h1", "addresses": ["10.0.0.2"]})
    found = judge(dataclasses.replace(hosted(said=there), answer=with_tensorflow()))
    [finding] = [f for f in found if f.level != "ok"]
    assert (finding.level, finding.what) == ("warning", "h1: TensorFlow is 2.15.1, here it is 2.21.0")


def test_horovod_is_needed_on_a_host_where_this_machine_has_it():
    there = answer(python={"hostname": "h1", "addresses": ["10.0.0.2"]}, horovod=NOT_INSTALLED)
    found = [(f.level, f.what) for f in judge(hosted(said=there)) if f.level != "ok"]
    assert found == [("warning", "h1: Horovod is not installed"), ("error", "h1: has no Horovod")]


def test_a_later_patch_release_of_python_there_is_no_difference():
    there = answer(python={"hostname": "h1", "addresses": ["10.0.0.2"], "version": "3.11.9"})
    assert {f.level for f in judge(hosted(said=there))} == {"ok"}
