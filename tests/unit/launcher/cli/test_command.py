"""The command: its arguments, and the three forms of its output."""

import io
import json

import pytest

from hvd_elastic_ext.core.errors import BadHosts, UsageError
from hvd_elastic_ext.launcher.cli import doctor
from hvd_elastic_ext.launcher.cli.doctor import Finding, main, report, wanted_hosts
from tests.unit.launcher.cli.test_findings import broken

FINE = Finding("ok", "Python 3.11")
SMALL = Finding("warning", "/dev/shm is 64 MiB", "a bus error", "--shm-size=2g")
BAD = Finding("error", "numpy is not installed", "Horovod needs it", "pip install numpy")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_hosts_are_gathered_once_each_from_both_options(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("h2:4\nh3\n")
    assert wanted_hosts(["h1", "h2"], str(path)) == ("h1", "h2", "h3")


@pytest.mark.parametrize("name", ["-oProxyCommand=reboot", "a b", "", "::1", "ü"])
def test_what_is_no_host_name_is_refused_before_anything_is_started(name):
    with pytest.raises(UsageError, match=r"^--host: "):
        main([f"--host={name}"])


def test_a_bad_line_of_the_file_is_named(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("h1:1\nh2:x\n")
    with pytest.raises(BadHosts, match=f"{path}:2: "):
        main(["--hosts-file", str(path)])


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"--hosts-file .*/none cannot be read"):
        main(["--hosts-file", str(tmp_path / "none")])


def test_plain_lines_hold_level_reason_and_remedy():
    out = io.StringIO()
    report([FINE, SMALL, BAD], out, as_json=False)
    assert out.getvalue().splitlines() == [
        "ok      Python 3.11",
        "warning /dev/shm is 64 MiB; a bus error; remedy: --shm-size=2g",
        "error   numpy is not installed; Horovod needs it; remedy: pip install numpy",
        "1 thing would break a job",
    ]


@pytest.mark.parametrize(
    ("findings", "last"),
    [
        ([FINE], "nothing here would break a job"),
        ([FINE, SMALL], "nothing here would break a job; 1 warning"),
        ([SMALL, SMALL], "nothing here would break a job; 2 warnings"),
        ([BAD, BAD, SMALL], "2 things would break a job"),
    ],
)
def test_the_last_line_sums_up(findings, last):
    out = io.StringIO()
    report(findings, out, as_json=False)
    assert out.getvalue().splitlines()[-1] == last


def test_a_machine_without_hosts_or_a_cluster_is_looked_at_for_itself_and_that_is_said(monkeypatch, capsys):
    """Defect: on a laptop "error hostname … resolves to 127.0.1.1 … 1 thing would break a job" without --local."""
    loopback = broken(python={"hostname": "laptop", "addresses": ["127.0.1.1"]})
    monkeypatch.setattr(doctor, "gather", lambda hosts, reach, directory: loopback)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main([]) == 0
    *_, last, left_out = capsys.readouterr().out.splitlines()
    assert last == "nothing here would break a job"
    assert left_out.startswith("not checked: what only a job on several machines needs; ")
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == left_out
    assert main(["--local"]) == 0
    assert "not checked" not in capsys.readouterr().out
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert main([]) == 1
    assert "1 thing would break a job" in capsys.readouterr().out


def test_a_terminal_gets_every_finding_reason_and_remedy_and_no_markup_of_theirs():
    out = Terminal()
    odd = Finding("error", "[bold]h1[/bold]: ssh fails", "it said [x]", "try")
    report([FINE, BAD, odd], out, as_json=False)
    for part in (
        "Python 3.11",
        "numpy is not installed",
        "Horovod needs it",
        "pip install numpy",
        "[bold]h1[/bold]",
        "[x]",
    ):
        assert part in out.getvalue()


def test_the_json_of_a_report_holds_every_finding_whole():
    out = io.StringIO()
    report([FINE, BAD], out, as_json=True)
    document = json.loads(out.getvalue())
    assert document["ok"] is False
    assert document["findings"][1] == {
        "level": "error",
        "what": "numpy is not installed",
        "why": "Horovod needs it",
        "remedy": "pip install numpy",
    }
