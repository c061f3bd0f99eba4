"""Only the published source is taken, and each change fits it exactly once."""

from pathlib import Path

import pytest
from tooling.errors import ToolingError
from tooling.horovod_source import PATCHES, apply_patches, unpack, verify


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for patch in PATCHES:
        path = tmp_path / patch.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"before\n    {patch.old}\nafter CMAKE_CXX_STANDARD\n")
    return tmp_path


def test_both_cmake_files_ask_for_cxx17_afterwards(source: Path) -> None:
    apply_patches(source)
    for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        assert (source / name).read_text() == "before\n    set(CMAKE_CXX_STANDARD 17)\nafter CMAKE_CXX_STANDARD\n"


def test_cuda_is_used_only_when_asked_for(source: Path) -> None:
    apply_patches(source)
    assert "'HOROVOD_GPU_OPERATIONS' in" in (source / "cmake/Modules/FindPytorch.cmake").read_text()


def test_a_second_application_is_refused_and_changes_nothing(source: Path) -> None:
    apply_patches(source)
    once = {patch.path: (source / patch.path).read_text() for patch in PATCHES}
    with pytest.raises(ToolingError, match="exactly once, found it 0 times"):
        apply_patches(source)
    assert {patch.path: (source / patch.path).read_text() for patch in PATCHES} == once


@pytest.mark.parametrize("index", range(len(PATCHES)))
@pytest.mark.parametrize("times", [0, 2])
def test_a_file_with_another_number_of_places_stops_all_changes(source: Path, index: int, times: int) -> None:
    (source / PATCHES[index].path).write_text(f"{PATCHES[index].old}\n" * times)
    before = {patch.path: (source / patch.path).read_text() for patch in PATCHES}
    with pytest.raises(ToolingError, match=f"found it {times} times"):
        apply_patches(source)
    assert {patch.path: (source / patch.path).read_text() for patch in PATCHES} == before


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolingError, match="not the source of Horovod"):
        apply_patches(tmp_path)


def test_an_unknown_source_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    sdist = tmp_path / "horovod-0.28.1.tar.gz"
    sdist.write_bytes(b"something else")
    with pytest.raises(ToolingError, match="its SHA-256 is"):
        verify(sdist)
    with pytest.raises(ToolingError, match="Delete it and try again"):
        unpack(sdist, tmp_path / "out")
    assert not (tmp_path / "out").exists()
