"""What travels with the package: found in a clone and in an environment, printed, run."""

from __future__ import annotations

import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.install import files, manifest

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "docker/manifests"


def test_a_file_is_found_beside_the_package_or_among_the_data_files(tmp_path: Path) -> None:
    prefix, source = tmp_path / "prefix", tmp_path / "source"
    with pytest.raises(UsageError, match="is neither at"):
        files.find("examples/train.py", package=source / "hvd_elastic_ext", prefix=prefix)
    for root, name in ((prefix, "share/hvd-elastic-ext/examples"), (source, "examples")):
        (root / name).mkdir(parents=True)
        (root / name / "train.py").touch()
        found = files.find("examples/train.py", package=source / "hvd_elastic_ext", prefix=prefix)
        assert found == root / name / "train.py"


def test_a_manifest_is_printed_for_a_job_and_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    assert manifest.main(["nodes", "--job", "fresh", "-n", "team"]) == 0
    role, binding = yaml.safe_load_all(capsys.readouterr().out)
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "hvd-launcher-fresh", "namespace": "team"}]
    assert (role["metadata"]["name"], binding["metadata"]["name"]) == ("hvd-discover-nodes", "hvd-discover-nodes-fresh")
    assert manifest.main(["mpijob", "--job", "fresh"]) == 0
    text = capsys.readouterr().out
    assert text.count("digits") == text.count("examples/01-digits/") == 1
    for wrong in (["--job", "Fresh"], ["-n", "a b"]):
        with pytest.raises(UsageError, match="small letters, digits and '-'"):
            manifest.main(["nodes", *wrong])


def test_all_manifests_are_listed_with_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert manifest.main([]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [name for name, _ in rows] == sorted(
        ["hpa", "alerts", "grafana", *(file.stem for file in MANIFESTS.glob("*.yaml"))]
    )
    assert all(len(what) > 20 for _, what in rows)


@pytest.mark.parametrize("name", ["rbac", "rbac.yaml"])
def test_a_manifest_is_printed_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert manifest.main([name]) == 0
    said = capsys.readouterr().out
    assert said == (MANIFESTS / "rbac.yaml").read_text()
    assert list(yaml.safe_load_all(said))


def test_a_name_that_no_manifest_has_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"there is no manifest mpi-job; did you mean mpijob\?"):
        manifest.main(["mpi-job"])
    with pytest.raises(UsageError, match=r"there is no manifest zzz; there are alerts, exec, .*hpa, "):
        manifest.main(["zzz"])


def test_the_tool_for_horovod_says_the_name_that_it_was_called_by(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hvd_elastic_ext.cli", "build-horovod", "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: hvd-elastic build-horovod ")


def test_what_is_missing_for_a_build_is_one_line_and_not_a_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hvd_elastic_ext.cli", "build-horovod", "--python", str(tmp_path / "nowhere")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "build-horovod: " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_tool_for_horovod_gets_all_options(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hvd_elastic_ext.cli", "build-horovod", "--without", "torch"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "give --with tensorflow, too" in done.stderr


def test_the_package_carries_all_that_these_commands_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    fake = SimpleNamespace(setup=told.update, find_packages=lambda include: [])
    monkeypatch.setitem(sys.modules, "setuptools", fake)
    runpy.run_path(str(ROOT / "setup.py"))
    carried = {f"{folder}/{Path(name).name}": name for folder, names in told["data_files"] for name in names}
    wanted = ["constraints.txt"]
    wanted += [f"examples/{name}/train.py" for name in ("01-digits", "07-keras", "08-tensorflow1")]
    wanted += [f"docker/manifests/{file.name}" for file in MANIFESTS.glob("*.yaml")]
    wanted += ["docker/monitoring/alerts.yaml", "docker/monitoring/grafana.json"]
    wanted += [f"scripts/tooling/{file.name}" for file in (ROOT / "scripts/tooling").glob("*.py")]
    found = {where.removeprefix(f"{files.SHARE}/").removeprefix("./"): name for where, name in carried.items()}
    assert found == {name: name for name in wanted}


def test_an_editable_install_is_a_path_that_type_checkers_follow() -> None:
    installed = Path(sysconfig.get_path("purelib")).glob("__editable__*hvd_elastic_ext*.pth")
    assert [file.read_text().strip() for file in installed] == [str(ROOT)]
