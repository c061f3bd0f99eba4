"""A full disk under the state directory stops nothing and damages nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAVER = """
import resource, signal, sys
from pathlib import Path
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.folder.state_folder import StateDir, load
from hvd_elastic_ext.launcher.folder.state_json import Saved

folder, filler, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
small, large = Saved(1, 7), Saved(1, 8, only_here="x" * 40_000)
with StateDir(folder) as held:
    assert held.next_incarnation() == 1
    assert held.save(small) and held.save(small)
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    else:
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError as error:
                print("filled:", error.errno)
    saves = [held.save(large) for _ in range(5)]
    print("saves:", saves)
    print("key:", len(held.key()))
    print("next:", held.next_incarnation())
    held.close()
    numbers = []
    for _ in range(3):  # launchers that are killed, one after the other
        with StateDir(folder) as another:
            numbers.append(another.next_incarnation())
    print("killed:", numbers)
    if not limit:
        try:
            with StateDir(folder.with_name("fresh")) as fresh:
                print("fresh:", fresh.next_incarnation())
        except UsageError as error:
            print("refused:", error)
    assert not any(path.suffix == ".tmp" for path in folder.iterdir())
    assert load(folder) == (small, True), load(folder)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        Path(filler).unlink()
    print("again:", held.save(large), load(folder) == (large, True))
"""


def check(*command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("needs a mount namespace of its own: run as root, or allow unprivileged user namespaces")
    assert done.returncode == 0, done.stderr
    assert "saves: [False, False, False, False, False]" in done.stdout
    assert "key: 32" in done.stdout
    assert "next: 2" in done.stdout
    assert "killed: [3, 4, 5]" in done.stdout
    assert "again: True True" in done.stdout
    assert done.stderr.count("state.json cannot be written") == 1
    assert done.stderr.count("state.json can be written again") == 1
    return done


def test_files_that_cannot_grow_are_reported_once_and_the_last_state_stays(tmp_path: Path) -> None:
    check(sys.executable, "-c", SAVER, str(tmp_path / "job"), "", "1024")


def test_a_full_disk_is_reported_once_and_the_last_state_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=64k,mode=0700 tmpfs "$1" || exit 77; exec "$2" -c "$3" "$1/job" "$1/filler" 0'
    within = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    done = check(*within, str(disk), sys.executable, SAVER)
    assert "filled: 28" in done.stdout
    assert "fresh/incarnation cannot be written (No space left on device); make room there" in done.stdout
