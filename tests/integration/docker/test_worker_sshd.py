"""sshd in worker pods: of MPI Operator, not as root and with keys that are root's, and of the et-operator, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.agents.transports.ssh import Ssh
from tests.support.manifests import containers, pods

DOCKER = Path(__file__).parents[3] / "docker"
USER = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"]

POD = """
set -e
keys="$1"
shift
ip link set lo up
mount -t tmpfs -o mode=755 home /home
mkdir -p /home/trainer/.ssh
cp "$keys"/id_rsa /home/trainer/.ssh/id_rsa
cp "$keys"/id_rsa.pub /home/trainer/.ssh/id_rsa.pub
cp "$keys"/id_rsa.pub /home/trainer/.ssh/authorized_keys
PREPARE
chmod 644 /home/trainer/.ssh/*
cp "$keys"/sshd_config "$keys"/ssh_config /home/
{ grep -v ^trainer: /etc/passwd; echo trainer:x:10001:10001::/home/trainer:/bin/sh; } > /home/passwd
mount --bind /home/passwd /etc/passwd
USER="$1"; shift
$USER /usr/sbin/sshd -De -f /home/sshd_config &
until grep -qi ':08AE ' /proc/net/tcp; do kill -0 $!; sleep 0.05; done
exec $USER "$@"
"""
"""08AE is 2222."""


@pytest.fixture
def keys() -> Iterator[Path]:
    """The job's key and the image's configurations."""
    programs = ("sshd", "ssh", "ssh-keygen", "setpriv", "unshare", "ip")
    missing = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"needs root and {', '.join(missing or programs)}: apt-get install openssh-server iproute2 util-linux"
        )
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as name:
        folder = Path(name)
        key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", str(folder / "id_rsa")]
        subprocess.run(key, check=True)
        for config in ("sshd_config", "ssh_config"):
            shutil.copy(DOCKER / f"{config}_trainer", folder / config)
        yield folder


def in_a_pod(keys: Path, *command: str, prepare: str = "") -> subprocess.CompletedProcess[str]:
    own = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = [*own, "sh", "-c", POD.replace("PREPARE", prepare), "sh", str(keys), " ".join(USER), *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    if "unshare:" in done.stderr:
        pytest.skip(f"needs namespaces of its own, in a container `docker run --privileged`: {done.stderr.strip()}")
    return done


def ssh(*words: str) -> list[str]:
    """As ``hvd-elastic run --ssh-port 2222`` does it, with the image's configuration."""
    program, *rest = Ssh(Path("/home/trainer"), port=2222).command("localhost", words)
    return [program, "-F", "/home/ssh_config", *rest]


def test_the_launcher_gets_in_with_the_jobs_key_and_hears_nothing_else(keys: Path) -> None:
    done = in_a_pod(keys, *ssh("sh", "-c", "id -un; id -u"))
    assert (done.returncode, done.stdout) == (0, "trainer\n10001\n"), done.stderr
    assert "Permanently added" not in done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize("public", ["job", "none"])
def test_a_host_without_the_jobs_key_is_not_talked_to(keys: Path, public: str) -> None:
    """Another pod, at an address that a worker had."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "other")], check=True)
    (keys / "other").chmod(0o644)
    config = keys / "sshd_config"
    config.write_text(
        config.read_text().replace("HostKey /home/trainer/.ssh/id_rsa", "HostKey /home/trainer/.ssh/other")
    )
    theirs = "cp $keys/other /home/trainer/.ssh/; " + (
        "" if public == "job" else "echo > /home/trainer/.ssh/id_rsa.pub; "
    )
    done = in_a_pod(keys, *ssh("echo", "talked"), prepare=theirs)
    assert (done.returncode, done.stdout) == (255, ""), done.stderr
    assert "Host key verification failed." in done.stderr


def test_nobody_gets_in_without_it(keys: Path) -> None:
    other = ["-oIdentitiesOnly=yes", "-oIdentityFile=/nowhere"]
    program, *rest = ssh("id")
    done = in_a_pod(keys, program, *other, *rest)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


ROOTS_POD = """
set -e
keys="$1"
workers="$2"
launchers="$3"
shift 3
ip link set lo up
mount -t tmpfs -o mode=755 run /run
mkdir /run/sshd
home="$(getent passwd root | cut -d: -f6)"
mount -t tmpfs -o mode=700 home "$home"
mkdir -m 700 "$home/.ssh"
for each in id_rsa id_rsa.pub; do install -m 600 "$keys/$each" "$home/.ssh/$each"; done
install -m 600 "$keys"/id_rsa.pub /run/authorized_keys
setpriv --no-new-privs --inh-caps=-all --bounding-set="$workers" /usr/sbin/sshd -De -f /dev/null \\
    -oHostKey="$home"/.ssh/id_rsa -oAuthorizedKeysFile=/run/authorized_keys -oUsePAM=yes -oPidFile=none &
until grep -qi ':0016 ' /proc/net/tcp; do kill -0 $!; sleep 0.05; done
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$launchers" "$@"
"""


def roots(role: str, container: str, *, without: str = "") -> str:
    """The rights that the manifest leaves a container, as setpriv takes them."""
    security = containers(pods("trainingjob.yaml")[role])[container]["securityContext"]
    assert security["capabilities"]["drop"] == ["ALL"]
    left = [f"+{name.lower()}" for name in security["capabilities"]["add"] if name != without]
    return ",".join(["-all", *left])


def as_root(keys: Path, *, workers: str, launchers: str) -> subprocess.CompletedProcess[str]:
    """A login from the launcher's container, as root and with the image's configuration, to the worker's sshd."""
    login = ["ssh", "-F", str(keys / "ssh_config"), "-oBatchMode=yes", "-i", str(keys / "id_rsa")]
    own = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = [*own, "sh", "-c", ROOTS_POD, "sh", str(keys), workers, launchers, *login, "root@127.0.0.1", "id -u"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    if "unshare:" in done.stderr:
        pytest.skip(f"needs namespaces of its own, in a container `docker run --privileged`: {done.stderr.strip()}")
    return done


@pytest.mark.parametrize("without", ["", "SETUID", "SYS_CHROOT"])
def test_roots_sshd_does_with_the_rights_that_the_manifest_leaves_it(keys: Path, without: str) -> None:
    done = as_root(keys, workers=roots("worker", "worker", without=without), launchers=roots("launcher", "launcher"))
    if without:
        assert done.returncode == 255, "a right that is not needed"
    else:
        assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_roots_ssh_knows_the_host_only_with_the_right_to_set_its_groups(keys: Path) -> None:
    """ssh sets them before it runs KnownHostsCommand."""
    done = as_root(keys, workers=roots("worker", "worker"), launchers=roots("launcher", "launcher", without="SETGID"))
    assert done.returncode == 255, "a right that is not needed"
    assert "initgroups" in done.stderr
