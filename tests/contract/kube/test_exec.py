"""Commands in pods by a real ``kubectl exec``; ours only, since it takes a kubelet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.kube import bodies
from tests.support.kube.fixtures import kube_tls as kube_tls  # a fixture
from tests.support.kube.server import KubeServer

if shutil.which("kubectl") is None:
    pytest.skip("needs a cluster's own tool, kubectl 1.30 or newer, on PATH", allow_module_level=True)


def kubectl(
    server: KubeServer, folder: Path, *arguments: str, token: str = "", stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    config = server.kubeconfig(folder / "kubeconfig", token=token or None)
    environment = {
        "HOME": str(folder),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true",
    }
    command = ["kubectl", "--kubeconfig", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=60, env=environment)


def test_a_command_gets_its_input_and_its_output_and_code_come_back(kube_tls: KubeServer, tmp_path: Path) -> None:
    kube_tls.put("pods", bodies.pod("w-0"))
    script = "read line; echo got $line; echo oops >&2; exit 3"
    done = kubectl(kube_tls, tmp_path, "exec", "-i", "w-0", "--", "sh", "-c", script, stdin="hello\n")

    assert (done.returncode, done.stdout) == (3, "got hello\n")
    assert "oops" in done.stderr
    assert [(key.name, container) for key, container, _ in kube_tls.execs.commands] == [("w-0", "worker")]


def test_much_goes_both_ways_at_once(kube_tls: KubeServer, tmp_path: Path) -> None:
    kube_tls.put("pods", bodies.pod("w-0"))
    much = "".join(f"line {number}\n" for number in range(100_000))
    done = kubectl(kube_tls, tmp_path, "exec", "-i", "w-0", "--", "cat", stdin=much)

    assert done.returncode == 0, done.stderr
    assert done.stdout == much


def test_commands_need_a_right_of_their_own(kube_tls: KubeServer, tmp_path: Path) -> None:
    kube_tls.put("pods", bodies.pod("w-0"))
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    kube_tls.put("roles", {"metadata": {"name": "r"}, "rules": rules})
    subjects = [{"kind": "ServiceAccount", "name": "launcher"}]
    kube_tls.put(
        "rolebindings", {"metadata": {"name": "r"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}
    )
    token = kube_tls.access.issue_for("default", "launcher")
    refused = kubectl(kube_tls, tmp_path, "exec", "w-0", "--", "true", token=token)
    rules.append({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]})
    kube_tls.put("roles", {"metadata": {"name": "r"}, "rules": rules})
    allowed = kubectl(kube_tls, tmp_path, "exec", "w-0", "--", "true", token=token)

    assert refused.returncode != 0
    assert "cannot" in refused.stderr
    assert 'resource "pods/exec"' in refused.stderr
    assert allowed.returncode == 0


def test_no_command_runs_in_a_pod_or_container_that_is_not_there(kube_tls: KubeServer, tmp_path: Path) -> None:
    kube_tls.put("pods", bodies.pod("w-0"))

    assert 'pods "w-1" not found' in kubectl(kube_tls, tmp_path, "exec", "w-1", "--", "true").stderr
    assert (
        "container other is not valid for pod w-0"
        in kubectl(kube_tls, tmp_path, "exec", "w-0", "-c", "other", "--", "true").stderr
    )
    assert kube_tls.execs.commands == []
