"""The probe answers in any interpreter, even if modules are missing or crash it."""

import sys
import textwrap

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli.doctor import SshAccess, resolve, run_probe, steps_in
from tests.support.environments import linked_environment


@pytest.fixture
def ask_with(tmp_path, monkeypatch):
    """Ask this interpreter, with modules of the given texts in front of the real ones."""

    def go(timeout=30.0, **modules):
        for name, text in modules.items():
            path = tmp_path / (name.replace("_", "/").replace("--", "__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return run_probe([sys.executable, "-"], timeout=timeout)

    return go


QUICK = {
    "numpy": "__version__ = '9.7'",
    "horovod_--init--": "__version__ = '9.8'",
    "torch": "__version__ = '9.9'\nclass cuda:\n    is_available = staticmethod(lambda: False)",
    "horovod_torch": "init = None\ndef gloo_built(): return 1\ndef nccl_built(): return 0",
    "tensorflow": "__version__ = '9.6'",
    "horovod_tensorflow": "def gloo_built(): return 1",
}


def test_a_whole_interpreter_answers_every_step(ask_with):
    answer = ask_with(**QUICK)
    assert answer.code == 0
    libraries = ["numpy", "torch", "horovod", "tensorflow", "horovod.tensorflow"]
    assert list(answer.steps) == ["python", "hvd-elastic-ext", *libraries, "done"]
    assert [answer.steps[step]["version"] for step in libraries] == ["9.7", "9.9", "9.8", "9.6", "9.8"]
    assert answer.steps["horovod"]["gloo"] is answer.steps["horovod.tensorflow"]["gloo"] is True
    assert answer.crashed_in is None
    assert answer.hostname


def test_an_import_that_fails_is_told_with_its_words_on_one_line(ask_with):
    answer = ask_with(**{**QUICK, "horovod_torch": "raise ImportError('lib.so:\\n undefined symbol: _Z')"})
    assert answer.steps["horovod"]["error"] == "ImportError: lib.so: undefined symbol: _Z"
    assert "done" in answer.steps


def test_a_horovod_without_torch_support_is_told(ask_with):
    answer = ask_with(**{**QUICK, "horovod_torch": "print('Warning!')"})
    assert "built without PyTorch" in answer.steps["horovod"]["error"]


def test_a_horovod_without_support_for_tensorflow_is_told(ask_with):
    answer = ask_with(**{**QUICK, "horovod_tensorflow": "raise ImportError('Extension has not been built')"})
    assert answer.steps["horovod.tensorflow"]["error"] == "ImportError: Extension has not been built"
    assert "done" in answer.steps


def test_where_tensorflow_is_not_installed_nothing_is_said_of_it(tmp_path):
    python = linked_environment(tmp_path, wanted=lambda name: False)
    answer = run_probe([str(python), "-"])
    assert list(answer.steps) == ["python", "hvd-elastic-ext", "numpy", "torch", "horovod", "done"]


def test_an_import_that_kills_the_interpreter_names_itself(ask_with):
    answer = ask_with(**{**QUICK, "torch": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"})
    assert answer.code == -11
    assert answer.crashed_in == "torch"
    assert "horovod" not in answer.steps


def test_an_import_that_leaves_by_itself_does_not_take_the_probe_along(ask_with):
    answer = ask_with(**{**QUICK, "torch": "raise SystemExit(3)"})
    assert answer.steps["torch"]["error"] == "SystemExit: 3"
    assert "done" in answer.steps


def test_an_import_that_never_ends_is_given_up_and_named(ask_with):
    answer = ask_with(timeout=1.0, **{**QUICK, "torch": "import time; time.sleep(100)"})
    assert answer.code is None
    assert answer.crashed_in in ("torch", None)


def test_a_command_that_is_not_there_is_an_answer_too():
    answer = run_probe(["/no/such/python", "-"])
    assert answer.code == 127
    assert "No such file" in answer.stderr


def test_chatter_and_torn_lines_are_passed_over():
    text = 'Welcome!\nhvd-doctor {"step":"python","version":"3.11.7"}\nhvd-doctor {"step":"num'
    assert dict(steps_in(text)) == {"python": {"version": "3.11.7"}}


def test_a_host_name_is_checked_before_it_reaches_a_command_line():
    with pytest.raises(UsageError, match="would be read as an option"):
        SshAccess().command("-oProxyCommand=reboot")


def test_ssh_gets_the_port_the_key_and_a_quoted_interpreter():
    command = SshAccess(2222, "/key", "/a b/python").command("h1")
    assert command[command.index("-p") + 1] == "2222"
    assert command[command.index("-i") + 1] == "/key"
    assert command[-3:-1] == ["--", "h1"]
    assert command[-1].endswith("; exec '/a b/python' -")
    assert "-oBatchMode=yes" in command


def test_names_that_do_not_resolve_have_no_addresses():
    assert resolve("localhost") == ("127.0.0.1",)
    assert resolve("nobody-knows.invalid") == ()
    assert resolve("a" * 64 + ".invalid") == ()
