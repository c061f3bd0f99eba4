"""The files and scripts that the Dockerfiles use exist. The tests of the scripts show that they work."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dockerfiles import ROOT, instructions, stages

FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))

by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def test_there_is_an_image_for_each_role() -> None:
    assert [path.name for path in FILES] == ["discover.Dockerfile", "worker.Dockerfile"]


@by_file
def test_every_copied_file_is_in_the_repository(path: Path) -> None:
    copied = [rest.split() for word, rest in instructions(path) if word == "COPY" and not rest.startswith("--from=")]
    assert copied
    for *sources, _ in copied:
        for source in sources:
            assert (ROOT / source).exists(), source
            assert (
                subprocess.run(
                    ["git", "-C", str(ROOT), "ls-files", "--error-unmatch", source], capture_output=True, check=False
                ).returncode
                == 0
            ), f"{source} is not in the repository"


@by_file
def test_every_script_that_runs_is_executable_and_copied_before(path: Path) -> None:
    copied: set[str] = set()
    for word, rest in instructions(path):
        if word == "COPY":
            copied.update(rest.split()[:-1])
        for script in re.findall(r"(?<![\w/])scripts/[\w-]+", rest) if word == "RUN" else []:
            assert os.access(ROOT / script, os.X_OK), script
            assert "scripts" in copied, f"{script} is run before it is copied"


@by_file
def test_pip_installs_pinned_versions_and_extras_that_exist(path: Path) -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    keywords = {word.arg: word.value for call in ast.walk(tree) if isinstance(call, ast.Call) for word in call.keywords}
    extras = ast.literal_eval(keywords["extras_require"])
    commands = [command for word, rest in instructions(path) if word == "RUN" for command in rest.split("&&")]
    installs = [command for command in commands if "pip install" in command]
    assert installs
    for command in installs:
        assert " -c constraints.txt" in command, command
    named = [
        extra for command in installs for each in re.findall(r'"\.\[([\w,]+)\]"', command) for extra in each.split(",")
    ]
    assert named == {"discover.Dockerfile": ["kubernetes"], "worker.Dockerfile": ["torch", "kubernetes"]}[path.name]
    assert set(named) <= set(extras)


def built(tensorflow: str) -> list[str]:
    """What the worker's image installs and builds, with that ``--build-arg TENSORFLOW``."""
    build, _ = stages(ROOT / "docker" / "worker.Dockerfile")
    here = {"python3 -m venv /opt/hvd": ":", "/opt/hvd/bin/pip ": "echo pip ", "rm -rf /cache": ":"}
    here |= {"scripts/build-horovod": "echo build-horovod"}
    commands = [rest for word, rest in build if word == "RUN" and not rest.startswith("apt-get")]
    for name, instead in here.items():
        commands = [each.replace(name, instead) for each in commands]
    arguments = {"TENSORFLOW": tensorflow, "TORCH_INDEX": "", "BUILD_OPTIONS": ""}
    done = [
        subprocess.run(["/bin/sh", "-ec", each], env=arguments, capture_output=True, text=True, check=True)
        for each in commands
    ]
    return "".join(each.stdout for each in done).splitlines()


def test_the_image_has_tensorflow_with_keras_2_and_a_horovod_for_it_if_it_is_asked_for() -> None:
    plain, beside = built(""), built("tensorflow-cpu")
    assert not any("tensorflow" in line or "tf-keras" in line for line in plain)
    assert [line for line in plain if line.startswith("build-horovod") or line.endswith("torch numpy")] == [
        "pip install --no-cache-dir -c constraints.txt torch numpy",
        "build-horovod --python /opt/hvd/bin/python --out /wheels",
    ]
    assert [line for line in beside if line not in plain] == [
        "pip install --no-cache-dir -c constraints.txt torch numpy tensorflow-cpu",
        "pip install --no-cache-dir -c constraints.txt --no-deps tf-keras",
        "build-horovod --python /opt/hvd/bin/python --out /wheels --with tensorflow",
    ]


@by_file
def test_images_run_as_the_user_of_the_manifests(path: Path) -> None:
    users = [rest.partition(":")[0] for word, rest in instructions(path) if word == "USER"]
    assert users[-1:] == ["10001"]


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A folder that everybody may enter, like a mounted Secret."""
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_the_workers_sshd_accepts_its_configuration_and_the_operators_key(mounted: Path) -> None:
    """Runs as the image's user, who does not own the key: sshd checks the mode of its owner's keys only."""
    sshd, keygen, setpriv = (
        shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("sshd", "ssh-keygen", "setpriv")
    )
    if sshd is None or keygen is None or setpriv is None or os.geteuid() != 0:
        pytest.skip("needs root and sshd: apt-get install openssh-server, run the tests as root")
    key, config = mounted / "id_rsa", mounted / "sshd_config"
    subprocess.run([keygen, "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", str(key)], check=True)
    key.chmod(0o644)
    written = (ROOT / "docker" / "sshd_config_trainer").read_text()
    config.write_text(written.replace("/home/trainer/.ssh/id_rsa", str(key)))
    config.chmod(0o644)  # whatever the umask
    as_user = [setpriv, "--reuid=10001", "--regid=10001", "--clear-groups"]
    done = subprocess.run([*as_user, sshd, "-T", "-f", str(config)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"port 2222", "passwordauthentication no", f"hostkey {key}"} <= set(done.stdout.splitlines())
