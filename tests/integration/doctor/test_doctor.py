"""The doctor on this machine and on real hosts with real faults."""

import importlib.util
import json
import re
import sys

import pytest

from hvd_elastic_ext.launcher.cli.doctor import run_probe
from tests.support.processes import run_process
from tests.support.tensorflow import needs_tensorflow

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
    assert "Horovod 0.28.1 with Gloo, for torch" in seen
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}" in seen
    assert any(what.startswith("torch 2.") for what in seen)
    assert not [f for f in document["findings"] if "goes on after a failed operation" in f["what"]]
    assert code == (0 if document["ok"] else 1)


@needs_tensorflow
def test_it_sees_tensorflow_and_keras_2(tmp_path):
    code, document = examine("--local", cwd=tmp_path)
    seen = "\n".join(f["what"] for f in document["findings"] if f["level"] == "ok")
    found = re.search(r"^Horovod 0\.28\.1 with Gloo, for TensorFlow (2\.\d+)\.\d+$", seen, re.MULTILINE)
    assert found is not None, document
    assert (f"\nKeras 2 (tf-keras {found[1]}." in seen) == (found[1] != "2.15")
    assert code == (0 if document["ok"] else 1)


def test_no_interpreter_runs_what_lies_in_the_directory_of_the_doctor(tmp_path, monkeypatch):
    here, stubs = tmp_path / "here", tmp_path / "stubs"
    here.mkdir()
    stubs.mkdir()
    for name in ("json", "socket", "importlib"):
        (here / f"{name}.py").write_text("import os\nopen('was-run', 'w').close()\nos._exit(66)\n")
    (stubs / "torch.py").touch()  # the real one takes a second
    monkeypatch.setenv("PYTHONPATH", str(stubs))
    monkeypatch.chdir(here)
    assert "done" in run_probe([sys.executable, "-"]).steps
    assert not (here / "was-run").exists()


@needs_horovod
def test_hosts_are_told_apart_by_what_is_wrong_with_each(nethosts, tmp_path):
    hosts = nethosts(3)
    hosts["h2"].resolve_own_name_to("127.0.1.1")
    hosts["h3"].cut()
    (tmp_path / "hosts").write_text("h1:1\nh2:1\nh3:1\nnobody:1\n")
    code, document = examine("--hosts-file", str(tmp_path / "hosts"), host=hosts.launcher, cwd=tmp_path)
    assert code == 1
    seen = [f["what"] for f in document["findings"]]
    assert "h1: ssh works" in seen
    assert f"h1: hostname 'h1' resolves to {hosts['h1'].address}" in seen
    assert "h1: Horovod 0.28.1 with Gloo, for torch" in seen
    found = {f["what"]: f for f in troubles(document)}
    assert not [what for what in found if what.startswith("h1")]
    loopback = found["h2: hostname 'h2' resolves to 127.0.1.1"]
    assert "every rank aborts" in loopback["why"]
    assert "/etc/hosts" in loopback["remedy"]
    assert "127.0.1.1" in loopback["remedy"]
    assert "is up" in found["h3: ssh fails"]["remedy"]
    assert "DNS" in found["nobody: ssh fails"]["remedy"]


def test_a_host_without_the_interpreter_or_that_refuses_the_key_is_named(nethosts, tmp_path):
    hosts = nethosts(1)
    (tmp_path / "torch.py").write_text("")
    options, how = ("--host", "h1", "--python", "/no/such/python"), {"env": {"PYTHONPATH": str(tmp_path)}}
    code, document = examine(*options, host=hosts.launcher, cwd=tmp_path, **how)
    assert code == 1
    found = {f["what"]: f for f in troubles(document)}
    assert "/no/such/python" in found["h1: the interpreter is not there"]["why"]
    hosts.identity.with_suffix(".pub").write_text("")
    code, document = examine(*options, host=hosts.launcher, cwd=tmp_path, **how)
    assert code == 1
    trouble = next(f for f in troubles(document) if f["what"] == "h1: ssh fails")
    assert "Permission denied" in trouble["why"]
    assert "ssh-copy-id h1" in trouble["remedy"]
