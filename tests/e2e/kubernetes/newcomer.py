"""Somebody with a kubeconfig, on a cluster that really starts what is submitted."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from tests.support.kube.fixtures import kube
from tests.support.kube.one_machine import ROOT, OneMachine
from tests.support.kube.server import KubeServer
from tests.support.light_torch import FOLDER as LIGHT_TORCH
from tests.support.waiting import wait_until

__all__ = ["kube"]

LONGEST_S = 300.0
COUNTING = ROOT / "tests" / "integration" / "launcher" / "counter.py"
SHORT = f"""\
import runpy, sys
sys.argv[1:] = sys.argv[1:] or ["30"]
runpy.run_path({str(COUNTING)!r}, run_name="__main__")
"""


class Newcomer:
    """Somebody with a kubeconfig, in a folder with a script."""

    def __init__(self, kube: KubeServer, capfd: pytest.CaptureFixture[str], claims: OneMachine) -> None:
        self.kube, self.claims = kube, claims
        self._capfd = capfd

    def types(self, line: str) -> str:
        """Run a line of the page; what it prints."""
        code, out, err = self._run(line)
        assert code == 0, (line, out, err)
        return out

    def is_refused(self, line: str) -> str:
        """Run a line that ends with an error; what it says."""
        code, out, err = self._run(line)
        assert code != 0, (line, out, err)
        return err

    def _run(self, line: str) -> tuple[int, str, str]:
        filled = line.replace("…", "example.org/train:1").replace("REGISTRY", "example.org").replace("\\$", "$")
        first, *words = shlex.split(filled)
        assert first == "hvd-elastic"
        self._capfd.readouterr()
        code = cli.main(words)
        said = self._capfd.readouterr()
        return code, said.out, said.err

    def state(self, name: str) -> str:
        return str(json.loads(self.types(f"hvd-elastic get {name} -o json"))["state"])

    def pods(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.kube.all("pods"))

    def waits_for_no_pods(self, *, of: str = "") -> None:
        """Until there is none whose name has that in it."""
        gone = lambda: not [each for each in self.pods() if of in each]  # noqa: E731
        wait_until(gone, what="the end of all pods", timeout=LONGEST_S, show=self.pods)

    def waits(self, name: str, state: str) -> None:
        assert self.types(f"hvd-elastic wait {name} --for {state} --timeout {LONGEST_S:g}s").startswith(name)

    def waits_for_world(self, name: str, size: int) -> None:
        """Until the newest world has this size."""

        def newest() -> bool:
            self._capfd.readouterr()
            cli.main(["logs", name])  # refused while the container waits to start
            found = re.findall(r"world \d+: size (\d+) ", self._capfd.readouterr().out)
            return bool(found) and int(found[-1]) == size

        wait_until(newest, what=f"a world of {size}", timeout=LONGEST_S)


@pytest.fixture
def newcomer(
    kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Newcomer]:
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig(tmp_path / "kubeconfig")))
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.py").write_text(SHORT)
    monkeypatch.chdir(here)
    env = {"PYTHONPATH": f"{LIGHT_TORCH}:{ROOT}", "OMP_NUM_THREADS": "1", "HVD_ELASTIC_SAMPLE": "0"}
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Path("/dev/null").open() as nothing, OneMachine(kube, folder, env=env, home=here) as machine:
        monkeypatch.setattr("sys.stdin", nothing)
        yield Newcomer(kube, capfd, machine)
