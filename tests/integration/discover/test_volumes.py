"""The hosts file on a real volume that is full, or read-only, while hosts change."""

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_process
from tests.support.waiting import wait_until

DEADLINE = 60.0


class OnVolume:
    """A daemon alone with a volume of 64 kB, which is seen from here through the daemon's own view of files."""

    def __init__(self, place, daemon) -> None:
        self.place = place
        self.daemon = daemon
        self.volume = Path(f"/proc/{daemon.pid}/root{place.hosts.parent}")

    def read(self) -> str:
        return (self.volume / "hosts").read_text()

    def keeps(self, text: str, new: str, *, why: str) -> None:
        self._until_it_says(why)
        assert self.read() == text
        assert self.place.get("/livez")[0] == 200
        assert f'"{new}"' in self.place.get("/hosts")[1], "the push does not wait for the file"

    def gets_through(self, text: str) -> None:
        wait_until(lambda: self.read() == text, what=f"{text!r} published", timeout=DEADLINE)
        self._until_it_says("fresh")

    def _until_it_says(self, what: str) -> None:
        wait_until(lambda: what in self.place.get("/readyz")[1], what=f"{what!r} from /readyz", timeout=DEADLINE)

    def failures(self) -> float:
        lines = self.place.get("/metrics")[1].splitlines()
        (line,) = [each for each in lines if each.startswith("hvd_discover_publish_failures_total ")]
        return float(line.split()[1])


@contextlib.contextmanager
def on_volume(place):
    """A daemon beside which ``a:1`` stands in the file already, on a volume that is read-only."""
    if os.geteuid() != 0:
        pytest.skip("needs a volume of its own: run as root")
    place.hosts.parent.mkdir()
    out = shlex.quote(str(place.hosts.parent))
    command = [sys.executable, "-m", "discover.cli", *place.options, "--listen", f"unix://{place.socket}"]
    steps = [f"mount -t tmpfs -o size=64k none {out}", f"echo a:1 >{out}/hosts", f"mount -o remount,ro {out}"]
    with run_process(["unshare", "-m", "sh", "-c", " && ".join([*steps, f"exec {shlex.join(command)}"])]) as daemon:
        daemon.wait_for("sequence=1", timeout=DEADLINE)
        yield OnVolume(place, daemon)


def test_rule_26_a_volume_that_is_read_only_or_full_keeps_the_old_file_and_the_next_one_gets_through(place):
    place.watched.write_text("a:1\nb:1\n")
    with on_volume(place) as volume:
        volume.keeps("a:1\n", "b", why="read-only file system")
        remount = ["nsenter", "-t", str(volume.daemon.pid), "-m", "mount", "-o", "remount,rw", str(place.hosts.parent)]
        subprocess.run(remount, check=True, capture_output=True)
        volume.gets_through("a:1\nb:1\n")
        failures = volume.failures()
        filler = volume.volume / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        place.watched.write_text("a:1\nb:1\nc:1\n")
        volume.keeps("a:1\nb:1\n", "c", why="no space left on device")
        assert volume.failures() > failures >= 1.0
        filler.unlink()
        volume.gets_through("a:1\nb:1\nc:1\n")
