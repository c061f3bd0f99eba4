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

    def until_it_reads(self, text: str) -> None:
        wait_until(lambda: self.read() == text, what=f"{text!r} published", timeout=DEADLINE)

    def until_it_says(self, what: str) -> None:
        wait_until(lambda: what in self.place.get("/readyz")[1], what=f"{what!r} from /readyz", timeout=DEADLINE)

    def it_keeps_the_old_file_and_says(self, why: str) -> None:
        self.until_it_says(why)
        assert self.read() == "a:1\n"
        assert self.failures() >= 1.0
        assert self.place.get("/livez")[0] == 200
        assert '"b"' in self.place.get("/hosts")[1], "the push does not wait for the file"

    def it_gets_through(self) -> None:
        self.until_it_reads("a:1\nb:1\n")
        self.until_it_says("fresh")

    def failures(self) -> float:
        lines = self.place.get("/metrics")[1].splitlines()
        (line,) = [each for each in lines if each.startswith("hvd_discover_publish_failures_total ")]
        return float(line.split()[1])


@contextlib.contextmanager
def on_volume(place, *, read_only: bool = False):
    """A daemon beside which ``a:1`` stands in the file already."""
    if os.geteuid() != 0:
        pytest.skip("needs a volume of its own: run as root")
    place.hosts.parent.mkdir()
    out = shlex.quote(str(place.hosts.parent))
    command = [sys.executable, "-m", "discover.cli", *place.options, "--listen", f"unix://{place.socket}"]
    steps = [f"mount -t tmpfs -o size=64k none {out}", f"echo a:1 >{out}/hosts"]
    steps += [f"mount -o remount,ro {out}"] if read_only else []
    with run_process(["unshare", "-m", "sh", "-c", " && ".join([*steps, f"exec {shlex.join(command)}"])]) as daemon:
        daemon.wait_for("sequence=1", timeout=DEADLINE)
        yield OnVolume(place, daemon)


def test_rule_26_a_full_volume_keeps_the_old_file_and_the_next_one_gets_through_once_there_is_room(place):
    place.watched.write_text("a:1\n")
    with on_volume(place) as volume:
        volume.until_it_says("fresh")
        assert volume.failures() == 0.0
        filler = volume.volume / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        place.watched.write_text("a:1\nb:1\n")
        volume.it_keeps_the_old_file_and_says("no space left on device")
        filler.unlink()
        volume.it_gets_through()


def test_rule_26_a_read_only_volume_keeps_the_old_file_and_is_written_once_it_can_be(place):
    place.watched.write_text("a:1\nb:1\n")
    with on_volume(place, read_only=True) as volume:
        volume.it_keeps_the_old_file_and_says("read-only file system")
        remount = ["nsenter", "-t", str(volume.daemon.pid), "-m", "mount", "-o", "remount,rw", str(place.hosts.parent)]
        subprocess.run(remount, check=True, capture_output=True)
        volume.it_gets_through()
