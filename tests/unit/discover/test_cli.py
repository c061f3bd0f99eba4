"""Flags, environment and file become settings; every mistake becomes one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from discover.cli import main, settings_from
from discover.daemon.settings import KubernetesSettings
from hvd_elastic_ext.core.errors import UsageError

FILE = ["--source", "file", "--watch", "in", "--publish-to", "out"]
STATIC = ["--source", "static", "--hosts", "a:1"]
KUBE = ["--source", "kubernetes", "--job", "j"]
BAD_HOSTS = ["a", "a:1,a:1", "a:1,"]


def test_relative_paths_are_taken_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = settings_from([*FILE, "--script", "s"], {})
    assert settings.source.watch == tmp_path / "in"
    assert settings.outputs.hosts_file == tmp_path / "out"
    assert settings.outputs.script == tmp_path / "s"


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("slots: 1\nhosts_file: from-file\nwatch: from-file\n")
    environ = {"HVD_DISCOVER_HOSTS_FILE": "from-environ", "HVD_DISCOVER_WATCH": "from-environ", "HOME": "/"}
    argv = ["--config", str(config), "--source", "file", "--watch", "from-flag"]
    settings = settings_from(argv, environ)
    assert settings.source.slots == 1
    assert settings.outputs.hosts_file == Path.cwd() / "from-environ"
    assert settings.source.watch == Path.cwd() / "from-flag"


def test_the_environment_may_name_the_configuration_file(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('source = "static"\nhosts = "a:1"\nonce = true\noutput = "json"\n')
    settings = settings_from([], {"HVD_DISCOVER_CONFIG": str(config)})
    assert settings.once
    assert settings.output == "json"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no source of hosts"),
        (["--source", "file"], "needs --watch"),
        (["--source", "static"], "needs --hosts"),
        (["--source", "static", "--hosts", "a:1", "--watch", "x"], "--watch does not go with"),
        (["--source", "kubernetes"], "--operator mpi needs the job's name; give --job NAME"),
        (["--source", "kubernets"], "invalid choice: 'kubernets'"),
        (["--source", "static", "--hosts", "a:1", "--job", "j"], "--job does not go with --source static"),
        ([*FILE, "--node-selector", "a=b"], "--node-selector does not go with --source file"),
        ([*KUBE, "--hosts", "a:1"], "--hosts does not go with --source kubernetes"),
        ([*KUBE, "--exit-with-container", "A b"], "--exit-with-container 'A b': small letters, digits and inner"),
        ([*KUBE, "--exit-with-container", "a", "--own-pod", "x=y"], "--own-pod 'x=y': small letters, digits and inner"),
        ([*KUBE, "--operator", "mpy"], "--operator 'mpy' is not one of mpi, "),
        ([*KUBE, "--admission-probe", "22"], "write tcp:PORT"),
        ([*KUBE, "--settle", "-1"], "--settle '-1': write a time, such as --settle 30s"),
        ([*KUBE, "--cluster-domain", "a b"], "--cluster-domain a b: "),
        ([*KUBE, "--slots", "0"], "--slots 0: write a number from 1"),
        ([*KUBE, "--namespace", "Big"], "--namespace 'Big'"),
        ([*KUBE, "--selector", "a=b\n"], "is not a label selector"),
        ([*KUBE, "--node-selector", "{}"], "--node-selector '{}' is not a label selector"),
        ([*KUBE, "--host-name", "{pod}"], "{pod} is not one of name, "),
        ([*KUBE, "--job", "J", "--once"], "--job 'J' is not the name"),
        ([*KUBE, "--kubeconfig", "/nonexistent", "--once"], "--kubeconfig /nonexistent: there is no such file"),
        ([*KUBE, "--signals", "/nonexistent", "--once"], "--signals /nonexistent cannot be read"),
        (
            [*KUBE, "--gpu-resource", "a b"],
            "--gpu-resource 'a b' is not a resource; write one such as nvidia.com/mig-*",
        ),
        (["--source", "kubernetes", "--operator", "statefulset", "--job", "../x"], "--job '../x' is not the name of a"),
        (["--source", "kubernetes", "--operator", "statefulset"], "--operator statefulset needs"),
        (["--source", "kubernetes", "--operator", "custom", "--job", "j"], "give --selector"),
        (["--sorce", "file"], "--sorce is not an option; did you mean --source?"),
        (["--config"], "argument --config: expected one argument"),
        ([*FILE, "extra"], "'extra' is one word too many"),
        (["--source", "file", "--watch", ""], "is not a path"),
        ([*FILE, "--slots", "x"], "--slots 'x': write a whole number, such as --slots 2"),
        ([*FILE, "--slots", "1025"], "from 1 to 1024"),
        (["--source", "static", "--hosts", "a", "--slots", "0"], "from 1 to 1024"),
        *((["--source", "static", f"--hosts={hosts}"], "--hosts: ") for hosts in BAD_HOSTS),
        ([*FILE, "--no-events"], "--no-events does not go with --source file"),
        ([*FILE, "--reap-failed"], "--reap-failed does not go with --source file"),
        (STATIC, "nowhere to publish"),
        ([*STATIC, "--script", "/s"], "--script prints a hosts file; name it with --publish-to"),
        ([*STATIC, "--script", "/s", "--hosts-file", "/s"], "both name"),
        ([*STATIC, "--listen", ":0", "--once"], "--once does not serve HTTP"),
        ([*STATIC, *(f"--listen={at}" for at in (":80", "unix:///s", "127.0.0.1:80"))], "127.0.0.1:80 is given twice"),
        (["--source", "file", "--watch", "/h", "--hosts-file", "/h"], "also written"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(argv, words, capsys):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert error.startswith("hvd-discover: ")


def test_what_is_asked_of_a_cluster_is_understood(tmp_path):
    argv = [*KUBE, "--namespace", "n", "--operator", "et", "--selector", "a in (b, c),!d", "--slots", "4"]
    argv += ["--host-name", "{name}.x", "--cluster-domain", "cluster.local", "--container", "main"]
    argv += ["--gpu-resource", "nvidia.com/mig-*", "--gpu-resource", "habana.ai/gaudi"]
    argv += ["--kubeconfig", "k", "--admission-probe", "tcp:2222", "--signals", "s", "--settle", "2.5"]
    settings = settings_from([*argv, "--node-selector", "pool=gpu", "--once"], {}).source
    assert settings == KubernetesSettings(
        job="j",
        namespace="n",
        operator="et",
        selector="a in (b, c),!d",
        slots=4,
        host_name="{name}.x",
        domain="cluster.local",
        container="main",
        gpu_resources=("nvidia.com/mig-*", "habana.ai/gaudi"),
        kubeconfig=Path.cwd() / "k",
        probe=2222,
        signals=Path.cwd() / "s",
        settle=2.5,
        node_selector="pool=gpu",
    )


@pytest.mark.parametrize("option", ["--publish-to", "--hosts-file"])
def test_the_file_that_is_written_is_named_by_a_name_of_its_own_or_the_older_one(option, tmp_path, capsys):
    source = ["--source", "static", "--hosts", "a:1", "--once"]
    assert main([*source, option, str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "a:1\n"
    named = f"HVD_DISCOVER_{option.strip('-').upper().replace('-', '_')}"
    assert settings_from(source, {named: "/out"}).outputs.hosts_file == Path("/out")
    assert settings_from([*source, "--publish-to", "/flag"], {named: "/out"}).outputs.hosts_file == Path("/flag")
    with pytest.raises(UsageError, match="--publish-to '' is not a path"):
        settings_from([*source, option, ""], {})


def test_of_a_cluster_little_has_to_be_said():
    assert settings_from([*KUBE, "--once"], {}).source == KubernetesSettings(job="j", operator="mpi", probe=22)
    chosen = settings_from(["--source", "kubernetes", "--selector", "a=b", "--once"], {}).source
    assert chosen == KubernetesSettings(selector="a=b", operator="custom")
    unprobed = settings_from(
        [],
        {
            "HVD_DISCOVER_SOURCE": "kubernetes",
            "HVD_DISCOVER_JOB": "j",
            "HVD_DISCOVER_ADMISSION_PROBE": "none",
            "HVD_DISCOVER_ONCE": "true",
        },
    )
    assert unprobed.source == KubernetesSettings(job="j", probe=None)


def test_without_a_cluster_it_is_said_where_one_was_looked_for(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert main([*KUBE, "--once"]) == 2
    error = capsys.readouterr().err
    assert "this is not a pod, and ~/.kube/config does not exist; give --kubeconfig FILE" in error


def test_without_its_client_a_cluster_is_refused_with_the_remedy(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    for loaded in ("discover.watch.cluster", "hvd_elastic_ext.io.kube.client"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    assert main([*KUBE, "--once"]) == 2
    assert "pip install kubernetes" in capsys.readouterr().err


def test_other_sources_do_not_load_the_client_of_kubernetes(tmp_path):
    (tmp_path / "in").write_text("a:1\n")
    looks = [["--source", "static", "--hosts", "a:1"], ["--source", "file", "--watch", str(tmp_path / "in")]]
    loaded = "sorted({name.partition('.')[0] for name in sys.modules} & {'kubernetes', 'urllib3', 'requests'})"
    code = (
        f"import sys; from discover.cli import main; [main([*each, '--once']) for each in {looks!r}]; print({loaded})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


CLUSTER = ["--source", "kubernetes", "--job", "digits", "--publish-to", "/hosts"]


def test_events_are_written_and_nothing_is_deleted_unless_it_is_said_otherwise():
    source = settings_from(CLUSTER, {}).source
    assert (source.events, source.reap) == (True, False)
    source = settings_from([*CLUSTER, "--no-events", "--reap-failed"], {}).source
    assert (source.events, source.reap) == (False, True)
    source = settings_from(CLUSTER, {"HVD_DISCOVER_REAP_FAILED": "true", "HVD_DISCOVER_NO_EVENTS": "false"}).source
    assert (source.events, source.reap) == (True, True)


def test_one_look_prints_a_table(capsys):
    assert main(["--source", "static", "--hosts", "long-name:1,b:16", "--once"]) == 0
    assert capsys.readouterr().out == "HOST       SLOTS\nb             16\nlong-name      1\n"


def test_one_look_prints_json_on_one_line(capsys):
    assert main(["--source", "static", "--hosts", "a:1", "--once", "-o", "json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert '"hosts":[{"name":"a","slots":1}]' in out


def once(folder: Path, watched: str | None, published: str) -> int:
    """Look once at the file ``in``, and publish to ``out``."""
    if watched is not None:
        (folder / "in").write_text(watched)
    (folder / "out").write_text(published)
    return main(["--source", "file", f"--watch={folder}/in", f"--hosts-file={folder}/out", "--once"])


def test_bad_hosts_name_file_and_line_and_leave_the_published_file_alone(tmp_path, capsys):
    assert once(tmp_path, "ok:1\nok:1\n", "old:1\n") == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/in:2: " in error
    assert error.count("\n") == 1
    assert (tmp_path / "out").read_text() == "old:1\n"


def test_a_missing_file_is_exit_code_1_and_leaves_the_published_file_alone(tmp_path, capsys):
    assert once(tmp_path, None, "old:1\n") == 1
    assert "does not exist" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "old:1\n"


def test_one_look_publishes_in_order_of_seniority(tmp_path, capsys):
    assert once(tmp_path, "# comment\n\nnew:1\r\na:1\nb:1\n", "b:1\na:2\n") == 0
    assert (tmp_path / "out").read_text() == "b:1\na:1\nnew:1\n"
