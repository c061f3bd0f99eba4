"""Where a watched file lies: in directories that come, go and are swapped, behind links, among others."""

import shutil
import threading
from pathlib import Path

from hvd_elastic_ext.io.file_watch import FileWatch
from tests.integration.discover.watching import NEVER, Watched


def test_a_directory_that_is_not_there_yet(tmp_path):
    path = tmp_path / "a/b/hosts"
    with Watched(path) as watched:
        path.parent.mkdir(parents=True)
        path.write_text("new:1\n")
        watched.wait_for("new:1\n")


def test_a_directory_that_is_removed_and_made_again(tmp_path):
    path = tmp_path / "a/b/hosts"
    path.parent.mkdir(parents=True)
    path.write_text("old:1\n")
    with Watched(path) as watched:
        for number in range(5):
            shutil.rmtree(tmp_path / "a")
            watched.wait_for(None)
            path.parent.mkdir(parents=True)
            path.write_text(f"new:{number}\n")
            watched.wait_for(f"new:{number}\n")


def test_a_directory_that_is_swapped_for_another(tmp_path):
    (tmp_path / "now").mkdir()
    (tmp_path / "now/hosts").write_text("old:1\n")
    (tmp_path / "next").mkdir()
    (tmp_path / "next/hosts").write_text("new:1\n")
    with Watched(tmp_path / "now/hosts") as watched:
        (tmp_path / "now").rename(tmp_path / "before")
        (tmp_path / "next").rename(tmp_path / "now")
        watched.wait_for("new:1\n")
        (tmp_path / "now/hosts").write_text("newer:1\n")
        watched.wait_for("newer:1\n")


class ConfigMap:
    """A volume as the kubelet writes it: ``hosts -> ..data/hosts``, ``..data -> ..TIME``, swapped by rename."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = 0
        self.path = directory / "hosts"
        self.update("old:1\n")
        self.path.symlink_to("..data/hosts")

    def update(self, text: str) -> None:
        self.number += 1
        version = self.directory / f"..2026_{self.number}"
        version.mkdir()
        (version / "hosts").write_text(text)
        (self.directory / "..data_tmp").symlink_to(version.name)
        (self.directory / "..data_tmp").replace(self.directory / "..data")
        for old in self.directory.glob("..2026_*"):
            if old != version:
                shutil.rmtree(old)


def test_a_configmap_is_followed_through_many_updates(tmp_path):
    volume = ConfigMap(tmp_path)
    with Watched(volume.path) as watched:
        watched.wait_for("old:1\n")
        for number in range(10):
            volume.update(f"h{number}:1\n")
            watched.wait_for(f"h{number}:1\n")


def test_a_configmap_reached_through_a_link_is_followed(tmp_path):
    (tmp_path / "volume").mkdir()
    volume = ConfigMap(tmp_path / "volume")
    (tmp_path / "here").symlink_to("volume")
    with Watched(tmp_path / "here/hosts") as watched:
        volume.update("new:1\n")
        watched.wait_for("new:1\n")


def test_a_relative_path_stays_where_it_was(hosts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = threading.Event()
    watch = FileWatch(Path("hosts"), seen.set, relook=NEVER)
    monkeypatch.chdir("/")
    watch.start()
    assert seen.wait(10)
    seen.clear()
    hosts.write_text("new:1\n")
    assert seen.wait(10)
    watch.stop()


def test_neighbours_are_none_of_its_business(hosts, tmp_path):
    with Watched(hosts) as watched:
        for number in range(50):
            (tmp_path / f"other{number}").write_text("x")
        hosts.write_text("new:1\n")
        watched.wait_for("new:1\n")
    assert len(watched.texts) <= 1 + 2 + 1
