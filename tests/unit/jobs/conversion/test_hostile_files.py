"""``convert`` on files of anybody: converted, or refused in one line, in little time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hvd_elastic_ext.cli import main as hvd_elastic
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io import config_file
from hvd_elastic_ext.io.config_file import documents, read_config
from hvd_elastic_ext.jobs.cli.convert import converted, main
from hvd_elastic_ext.jobs.conversion.document import Body
from tests.support.manifests import of_operator

ALIASES = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
START = "kind: MPIJob\napiVersion: kubeflow.org/v1\n"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "f: line 1 is more than 100 lists and tables deep"),
        (f"{START}spec: {'{a: ' * 100_000}", "f: line 3 is more than 100 lists and tables deep"),
        (f"{START}spec:{'- ' * 200}x", ""),
        (f"{START}{ALIASES}", "f: its aliases stand for more than 100,000 values; write them out"),
        (f"{START}spec: &a\n  b: *a\n", "f: the alias *a stands for what it is in"),
        (f"{START}spec: {{replicas: {'9' * 5000}}}", "f: line 3 has a number of 5,000 characters"),
        (f"{START}at: 0x{'f' * 5000}", "f: line 3 has a number of 5,002 characters"),
        (f"{START}at: {'1:' * 500_000}1", "f: line 3 has a number of 1,000,001 characters"),
        (f"{START}at: !!int '{'9' * 5000}'", "f: line 3 has a number of 5,000 characters"),
        (f"{START}at: [{'1,' * 600_000}1]", "f: it holds more than 500,000 values"),
        (f"{START}at: 2024-13-45", "f: a value cannot be read: month must be in 1..12"),
        ("kind: List\napiVersion: v1\nitems: 5", "f: the items of a List are not a list"),
        ("kind: List\napiVersion: v1\nitems: {a: 1}", "f: the items of a List are not a list"),
        ("\x1b[2J: [", "f: "),
        (f"{START}spec: {{mpiReplicaSpecs: {{Worker: 5}}}}", "f: a field of the MPIJob kubeflow.org/v1 has a value"),
        (
            'kind: PyTorchJob\napiVersion: "\\e[2J\\n"\nspec: {pytorchReplicaSpecs: 5}',
            "f: a field of the PyTorchJob \\x1b[2J\\n has a value",
        ),
    ],
    ids=range(16),
)
def test_a_text_that_means_too_much_or_nothing_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        converted(text, "f")
    said = str(refused.value)
    assert said.startswith(problem or "f: ")
    assert said.isprintable(), said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{START}metadata:\n  name: {{{{ .Values.name }}}}\n", 4),
        (f"{{{{- if .Values.enabled }}}}\n{START}{{{{- end }}}}\n", 1),
        (f"{START}spec:\n  {{{{- toYaml .Values.spec | nindent 2 }}}}\n", 4),
        (f"{START}spec:\n  slotsPerWorker: {{{{ default 1 .Values.slots }}}}\n", 4),
        ('{{/* helpers */}}\n{{- define "name" -}}\nx\n{{- end }}\n', 1),
        (f'{START}spec:\n  mpiReplicaSpecs:\n    Worker: "{{{{ .Values.worker }}}}"\n', 5),
    ],
)
def test_a_template_of_helm_is_called_one_with_the_command_that_renders_it(
    text: str, line: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert hvd_elastic(["convert", f"{tmp_path}/job.yaml"]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == (
        f"hvd-elastic convert: {tmp_path}/job.yaml is a Helm template (line {line} has {{{{ }}}}), not a manifest; "
        "convert what Helm makes of its chart: helm template NAME CHART | hvd-elastic convert -\n"
    )


def test_braces_in_a_manifest_or_in_a_broken_one_are_not_helm() -> None:
    command = "[docker, ps, --format, '{{.Names}}']"
    assert "{{.Names}}" in converted(f"{START}spec: {{runPolicy: {{}}, command: {command}}}", "f")
    with pytest.raises(UsageError, match=r"^f: line 3, column 7: "):
        converted(f"{START}spec: {{{{a: 1}}: 2", "f")


def test_a_few_aliases_and_some_depth_are_what_people_write() -> None:
    text = (
        f"{START}x: &x {{a: [1, 2]}}\nspec: {{b: *x, c: *x}}\ndeep: {'[' * 40 + ']' * 40}\n---\n{START}x: &x 1\ny: *x\n"
    )
    assert [each["kind"] for each in documents(text, where="f")] == ["MPIJob", "MPIJob"]


def test_no_name_or_value_leaves_a_comment() -> None:
    name = "a\\nkind: Secret\\n\\e[2J\\u2028\\x85#"
    text = f'kind: MPIJob\napiVersion: kubeflow.org/v1\nspec: {{"{name}": "{name}", mpiDistribution: "{name}"}}\n'
    made = converted(text, "f\nkind: Secret")
    comments = [line for line in made.splitlines() if line.startswith("#")]
    assert all(line.isprintable() for line in comments)
    assert "\x1b" not in made
    assert [each["kind"] for each in yaml.safe_load_all(made)] == ["MPIJob"]
    assert any("NO EQUAL: spec.a\\nkind: Secret" in line for line in comments)


def test_no_word_of_a_script_leaves_a_comment() -> None:
    made = converted("arena submit mpijob --name=a --unknown='x\ntouch /tmp/evil\n' 'python t.py'\n", "f")
    assert "# NO EQUAL: hvd-elastic has no such option: --unknown='x\\ntouch /tmp/evil\\n'\n" in made
    assert not any(line.startswith("touch") for line in made.splitlines())


@pytest.mark.timeout(20)
def test_white_space_takes_no_time() -> None:
    with pytest.raises(UsageError, match="neither a manifest"):
        converted("\n" * 300_000, "f")


@pytest.mark.parametrize("kind", ["a pipe (FIFO)", "a device", "a folder"])
@pytest.mark.parametrize("words", ["convert", "run --config"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, words: str, tmp_path: Path) -> None:
    path = Path("/dev/zero") if kind == "a device" else tmp_path / "f"
    if kind == "a pipe (FIFO)":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    read = main if words == "convert" else read_config
    given = [str(path)] if words == "convert" else path
    with pytest.raises(UsageError) as refused:
        read(given)
    assert f"cannot be read: it is {kind}, not a regular file" in str(refused.value)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(config_file.MAX_BYTES + 1)
    with pytest.raises(UsageError, match="cannot be read: it has more than 16 MiB"):
        read_config(tmp_path / "f")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.yaml", "[" * 100_000), ("f.yaml", f"a: {'9' * 5000}"), ("f.yaml", ALIASES), ("f.yaml", "a: 2024-13-45"),
        ("f.toml", "a = " + "[" * 100_000), ("f.toml", f"a = {'9' * 5000}"), ("f.yaml", "a: 1\n---\nb: 2\n"),
    ],
)  # fmt: skip
def test_a_file_of_options_is_read_with_the_same_limits(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_config(path)
    assert str(refused.value).startswith(f"--config {path}")
    assert str(refused.value).isprintable()


def old_job(command: str) -> Body:
    containers = f"[{{name: m, image: x, command: {command}, args: ['']}}, {{name: side, image: y, command: [a]}}]"
    made: Body = yaml.safe_load(
        f"{{kind: MPIJob, apiVersion: kubeflow.org/v1alpha2, metadata: {{name: j}}, spec: {{mpiReplicaSpecs: "
        f"{{Launcher: {{replicas: 1, template: {{spec: {{containers: [{{name: m, image: x, command: [mpirun]}}]}}}}}}, "
        f"Worker: {{replicas: 2, template: {{spec: {{containers: {containers}}}}}}}}}}}}}"
    )
    return made


@pytest.mark.parametrize("command", ["['']", "['', ' ']"])
def test_an_empty_command_of_a_worker_is_left_out_and_said(command: str) -> None:
    made = converted(yaml.safe_dump(old_job(command)), "f")
    (body,) = yaml.safe_load_all(made)
    containers = body["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert containers == [{"name": "m", "image": "x"}, {"name": "side", "image": "y", "command": ["a"]}]
    assert of_operator(body) == []
    assert "is left out: it is empty; the operator starts sshd in its place\n" in made


def test_get_finds_the_pods_of_a_converted_job_by_their_labels() -> None:
    (body,) = yaml.safe_load_all(converted(yaml.safe_dump(old_job("[sleep, '9']")), "f"))
    labels = {role: each["template"]["metadata"]["labels"] for role, each in body["spec"]["mpiReplicaSpecs"].items()}
    assert labels == {
        "Launcher": {"hvd-elastic-job": "j", "hvd-elastic-role": "launcher"},
        "Worker": {"hvd-elastic-job": "j", "hvd-elastic-role": "worker"},
    }


def test_kinds_that_are_not_known_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f"
    path.write_text("kind: Job\napiVersion: batch/v1\nspec: 5\n---\nkind: MPIJob\napiVersion: kubeflow.org/v2beta1\n")
    assert hvd_elastic(["convert", str(path)]) == 0
    assert capsys.readouterr().err == (
        f"{path}: printed as it is, and not checked: Job batch/v1; convert knows MPIJob, HorizontalPodAutoscaler, "
        "PyTorchJob\n"
    )
