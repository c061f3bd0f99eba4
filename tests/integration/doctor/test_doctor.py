"""The doctor on this machine and on real hosts with real faults."""

import importlib.util
import json
import sys

import pytest

from hvd_elastic_ext.launcher.cli.doctor.probes import ask
from tests.support.processes import run_process

DOCTOR = [sys.executable, "-m", "hvd_elastic_ext.cli", "doctor"]

needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="needs Horovod beside this interpreter: run scripts/setup and use its virtual environment",
)


def examine(*options, host=None, **how):
    """Run the doctor here, or on ``host``; return ``(exit code, its JSON)``."""
    if host is None:
        with run_process([*DOCTOR, "--json", *options], **how) as process:
            code = process.wait(100)
    else:
        process = host.run([*DOCTOR, "--json", *options], timeout=100, **how)
        code = process.returncode
    assert process.stderr == "", process.output
    return code, json.loads(process.stdout)


def troubles(document):
    return [f for f in document["findings"] if f["level"] == "error"]


@needs_horovod
def test_it_sees_what_is_installed_here(tmp_path):
    code, document = examine("--local", cwd=tmp_path)
    seen = [f["what"] for f in document["findings"] if f["level"] == "ok"]
    assert "Horovod 0.28.1 with Gloo" in seen
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}" in seen
    assert any(what.startswith("torch 2.") for what in seen)
    assert code == (0 if document["ok"] else 1)


def test_a_horovod_that_crashes_on_import_is_a_finding_and_no_crash(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    (tmp_path / "torch.py").write_text("__version__ = '9'\nclass cuda:\n    is_available = staticmethod(lambda: False)")
    code, document = examine("--local", env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert code == 1
    crash = next(f for f in troubles(document) if "signal 11" in f["why"])
    assert "Horovod" in crash["what"]
    assert "build-horovod" in crash["remedy"]


def test_no_interpreter_runs_what_lies_in_the_directory_of_the_doctor(tmp_path, monkeypatch):
    for name in ("json", "socket", "importlib"):
        (tmp_path / f"{name}.py").write_text("import os\nopen('was-run', 'w').close()\nos._exit(66)\n")
    monkeypatch.chdir(tmp_path)
    assert "done" in ask([sys.executable, "-"]).steps
    assert not (tmp_path / "was-run").exists()


def test_a_wrong_host_name_is_one_line_and_usage():
    with run_process([*DOCTOR, "--host=-oProxyCommand=touch pwned"]) as process:
        assert process.wait() == 2
    assert process.stderr.count("\n") == 1
    assert "would be read as an option" in process.stderr


@needs_horovod
def test_healthy_hosts_are_found_healthy_over_ssh(nethosts, tmp_path):
    hosts = nethosts(2)
    code, document = examine("--host", "h1", "--host", "h2", host=hosts.launcher, cwd=tmp_path)
    assert troubles(document) == []
    assert code == 0
    seen = [f["what"] for f in document["findings"]]
    for name in ("h1", "h2"):
        assert f"{name}: ssh works" in seen
        assert f"{name}: hostname '{name}' resolves to {hosts[name].address}" in seen
        assert f"{name}: Horovod 0.28.1 with Gloo" in seen


def test_a_host_that_takes_its_own_name_for_loopback_is_named_with_the_remedy(nethosts, tmp_path):
    hosts = nethosts(2)
    hosts["h2"].resolve_own_name_to("127.0.1.1")
    code, document = examine("--host", "h1", "--host", "h2", host=hosts.launcher, cwd=tmp_path)
    assert code == 1
    (trouble,) = [f for f in troubles(document) if "hostname" in f["what"]]
    assert trouble["what"] == "h2: hostname 'h2' resolves to 127.0.1.1"
    assert "every rank aborts" in trouble["why"]
    assert "/etc/hosts" in trouble["remedy"]
    assert "127.0.1.1" in trouble["remedy"]


def test_hosts_out_of_reach_are_told_apart_and_none_holds_the_others_up(nethosts, tmp_path):
    hosts = nethosts(3)
    hosts["h1"].cut()
    (tmp_path / "hosts").write_text("h1:1\nh2:1\nh3:1\nnobody:1\n")
    options = ["--hosts-file", str(tmp_path / "hosts"), "--python", "/no/such/python"]
    code, document = examine(*options, host=hosts.launcher, cwd=tmp_path)
    assert code == 1
    found = {f["what"]: f for f in troubles(document) if f["what"].startswith(("h", "n"))}
    assert "is up" in found["h1: ssh fails"]["remedy"]
    assert "DNS" in found["nobody: ssh fails"]["remedy"]
    for name in ("h2", "h3"):
        assert "/no/such/python" in found[f"{name}: the interpreter is not there"]["why"]


def test_a_host_that_refuses_the_key_is_named(nethosts, tmp_path):
    hosts = nethosts(1)
    hosts.identity.with_suffix(".pub").write_text("")
    code, document = examine("--host", "h1", host=hosts.launcher, cwd=tmp_path)
    assert code == 1
    trouble = next(f for f in troubles(document) if f["what"] == "h1: ssh fails")
    assert "Permission denied" in trouble["why"]
    assert "ssh-copy-id h1" in trouble["remedy"]
