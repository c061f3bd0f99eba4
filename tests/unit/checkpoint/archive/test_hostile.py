"""Checkpoints that somebody has damaged, or made up: one line of error, nothing read outside, nothing run."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint.archive import catalog, read, write
from hvd_elastic_ext.checkpoint.format import checksums
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.manifest import LAYOUT, SHARD, TREE, Manifest
from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.core.errors import ElasticError, Permanent
from tests.support.checkpoints import Held, demand_same, held, identity, newest_intact, save


class Scene:
    """A folder with an older checkpoint and the one that is tampered with."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.before, self.commit = held(identity(1), seed=1), held(identity(2), seed=2)
        save(self.store, self.before)
        self.made = save(self.store, self.commit)
        self.folder = folder / self.commit.name

    def path(self, kind: str) -> Path:
        file = self.made.file(kind)
        assert file is not None
        return self.folder / file.name

    def rewrite(self, kind: str, data: bytes) -> None:
        """Other contents for a file, with a manifest that agrees: made up, not damaged."""
        path = self.path(kind)
        path.write_bytes(data)
        told = json.loads((self.folder / "manifest.json").read_bytes())
        for file in told["files"]:
            if file["name"] == path.name:
                file.update(bytes=len(data), checksums=list(checksums.of(data)))
        del told["seal"]
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        seal = checksums.digest([text.encode()])
        (self.folder / "manifest.json").write_text(json.dumps({**told, "seal": seal}))

    def demand_passed_over(self) -> str:
        """It is damaged, that is told in one line, and the one before is taken; why."""
        with pytest.raises(Damaged) as failed:
            load(self.store, self.commit)
        assert "\n" not in str(failed.value)
        with pytest.raises(Damaged):
            read.verify(self.store, self.commit.name)
        assert newest_intact(self.store)[0] == self.before.name
        demand_same(self.store, self.before)
        return failed.value.why


def load(store: LocalStore, commit: Held) -> None:
    checkpoint = read.opened(store, commit.name)
    local = checkpoint.local(0) or b""
    checkpoint.fill(memoryview(bytearray(checkpoint.record(local).total)), local)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "store")


def every_file(scene: Scene) -> Iterator[Path]:
    return (path for path in sorted(scene.folder.iterdir()) if not path.name.startswith("local-00001"))


def test_any_byte_that_is_wrong_is_found(scene: Scene) -> None:
    for path in every_file(scene):
        whole = path.read_bytes()
        for at in random.Random(path.stat().st_size).sample(range(len(whole)), min(12, len(whole))):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            scene.demand_passed_over()
        path.write_bytes(whole)
    demand_same(scene.store, scene.commit)


def test_a_file_that_is_cut_or_longer_or_gone_is_found(scene: Scene) -> None:
    for path in every_file(scene):
        whole = path.read_bytes()
        for other in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"x"):
            path.write_bytes(other)
            scene.demand_passed_over()
        path.unlink()
        if path.name != "manifest.json":
            assert "missing" in scene.demand_passed_over()
        path.write_bytes(whole)


def test_without_a_manifest_there_is_no_checkpoint(scene: Scene) -> None:
    (scene.folder / "manifest.json").unlink()
    with pytest.raises(Missing, match="is not there"):
        read.opened(scene.store, scene.commit.name)
    assert newest_intact(scene.store) == (scene.before.name, {})


def test_a_folder_that_is_a_link_is_none(scene: Scene, tmp_path: Path) -> None:
    scene.folder.rename(tmp_path / "elsewhere")
    scene.folder.symlink_to(tmp_path / "elsewhere")
    assert [entry.name for entry in catalog.listing(scene.store)] == [scene.before.name]
    with pytest.raises(ElasticError):
        read.opened(scene.store, scene.commit.name)


@pytest.mark.parametrize("name", ["..", "../..", "/etc", "", ".", "x/../../y"])
def test_a_name_that_is_a_path_is_none(scene: Scene, name: str) -> None:
    with pytest.raises(ElasticError):
        read.opened(scene.store, name)


def test_one_under_anothers_name_is_none(scene: Scene) -> None:
    name = held(identity(3)).name
    shutil.copytree(scene.folder, scene.folder.with_name(name))
    with pytest.raises(Damaged, match="belongs to another one"):
        read.opened(scene.store, name)
    assert newest_intact(scene.store)[0] == scene.commit.name


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_is_never_read(scene: Scene, kind: str) -> None:
    path = scene.path(SHARD)
    path.rename(path.with_name("there"))
    {"link": lambda: path.symlink_to("there"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(Permanent):
        scene.store.read(scene.commit.name, path.name, 0, [memoryview(bytearray(8))])
    scene.demand_passed_over()


def entries(scene: Scene) -> tuple[dict[str, Any], bytes]:
    whole = scene.path(SHARD).read_bytes()
    (length,) = struct.unpack_from("<Q", whole)
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def with_header(told: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text + data


SHARDS: dict[str, Callable[[dict[str, Any], bytes], bytes]] = {
    "nothing": lambda told, data: b"",
    "a header beyond the file": lambda told, data: struct.pack("<Q", 1 << 20) + data,
    "a bomb of brackets": lambda told, data: struct.pack("<Q", 90_000) + b"[" * 90_000 + data,
    "another's name": lambda told, data: with_header({"77": told["0"]}, data),
    "a tensor less": lambda told, data: with_header({k: v for k, v in told.items() if k != "1"}, data),
    "all in one place": lambda told, data: with_header(
        {k: v if k == "__metadata__" else {**v, "data_offsets": [0, 8]} for k, v in told.items()}, data
    ),
    "far away": lambda told, data: with_header(
        {k: v if k == "__metadata__" else {**v, "data_offsets": [1 << 60, 1 << 61]} for k, v in told.items()}, data
    ),
    "more data": lambda told, data: with_header(told, data + b"more"),
    "less data": lambda told, data: with_header(told, data[:-1]),
}


@pytest.mark.parametrize("name", SHARDS)
def test_a_shard_that_was_made_up_is_refused(scene: Scene, name: str) -> None:
    scene.rewrite(SHARD, SHARDS[name](*entries(scene)))
    scene.demand_passed_over()


def test_a_tensor_that_is_twice_there_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    other = scene.made.file(SHARD, 1)
    assert other is not None
    scene.rewrite(SHARD, (scene.folder / other.name).read_bytes())
    assert "each tensor once" in scene.demand_passed_over()


@pytest.mark.parametrize(
    "layout",
    [b"", b'[["float32",[4],[1],"cpu",1]]', b'[["float32",[4611686018427387904],[1],"cpu",1]]'],
)
def test_a_layout_that_was_made_up_is_refused(scene: Scene, layout: bytes) -> None:
    scene.rewrite(LAYOUT, layout)
    scene.demand_passed_over()


@pytest.mark.parametrize(
    "tree",
    [b"", b"[" * 50_000, b'{"a":{"$call":["os:system","true"]}}'],
)
def test_a_tree_that_was_made_up_is_refused(scene: Scene, tree: bytes) -> None:
    scene.rewrite(TREE, tree)
    scene.demand_passed_over()


def test_a_file_of_no_end_is_not_read(scene: Scene) -> None:
    with (scene.folder / "manifest.json").open("r+b") as manifest:
        manifest.truncate(1 << 40)
    assert "bytes" in scene.demand_passed_over()


def test_what_is_not_whole_is_not_sealed(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    made: Manifest = scene.made
    with pytest.raises(Permanent, match="there are the parts 0, 1 of 3"):
        write.seal(scene.store, scene.commit.record, made.files, parts=3, world=3)
    scene.path(SHARD).unlink()
    with pytest.raises(ElasticError, match="now missing or incomplete"):
        write.seal(scene.store, scene.commit.record, made.files, parts=2, world=2)
