"""Only the published source is accepted, and each change fits it exactly once."""

from pathlib import Path

import pytest
from tooling.errors import ToolingError
from tooling.horovod_source import PATCHES, apply_patches, unpack


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for patch in PATCHES:
        path = tmp_path / patch.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"before\n    {patch.old}\nafter CMAKE_CXX_STANDARD\n")
    return tmp_path


def texts(source: Path) -> list[str]:
    return [path.read_text() if (path := source / patch.path).exists() else "" for patch in PATCHES]


def test_the_cmake_files_ask_for_cxx17_and_for_cuda_only_on_request(source: Path) -> None:
    apply_patches(source)
    told = {patch.path: text for patch, text in zip(PATCHES, texts(source), strict=True)}
    for path in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        assert told[path] == "before\n    set(CMAKE_CXX_STANDARD 17)\nafter CMAKE_CXX_STANDARD\n"
    assert "CMAKE_CUDA_STANDARD 17" in told["horovod/common/ops/cuda/CMakeLists.txt"]
    assert "'HOROVOD_GPU_OPERATIONS' in" in told["cmake/Modules/FindPytorch.cmake"]


def test_headers_include_what_gcc_13_does_not_bring_by_chance(source: Path) -> None:
    apply_patches(source)
    told = {patch.path: text for patch, text in zip(PATCHES, texts(source), strict=True)}
    assert "#include <stdexcept>\n" in told["horovod/common/common.h"]
    assert "#include <string>\n" in told["horovod/common/group_table.h"]


def test_the_file_about_xla_is_compiled_for_a_tensorflow_that_has_its_headers(source: Path) -> None:
    apply_patches(source)
    told = {patch.path: text for patch, text in zip(PATCHES, texts(source), strict=True)}
    lines = [line.strip() for line in told["horovod/tensorflow/CMakeLists.txt"].splitlines()]
    assert lines[1] == 'if (Tensorflow_VERSION VERSION_LESS "2.16")'
    assert lines[2].endswith('/xla_mpi_ops.cc")')
    assert lines[3] == "endif()"


def test_all_changes_of_one_file_are_made(source: Path) -> None:
    apply_patches(source)
    text = (source / "horovod/common/operations.cc").read_text()
    assert "bool everywhere = response.response_type() == Response::ERROR;" in text
    assert "everywhere |= dynamic_cast<const std::logic_error*>(&ex) != nullptr;" in text
    assert text.count("throw std::runtime_error(") == 2
    text = (source / "third_party/gloo/gloo/transport/tcp/loop.cc").read_text()
    assert text.count("defer([] {});\n") == 2
    assert "events.size(), -1)" in text
    assert "    {\n      std::lock_guard<std::mutex> guard(m_);\n      cv_.notify_all();\n    }\n" in text


@pytest.mark.parametrize("index", range(len(PATCHES)))
@pytest.mark.parametrize("times", [0, 2, None], ids=["never", "twice", "no file"])
def test_a_file_that_a_change_does_not_fit_once_stops_all_changes(source: Path, index: int, times: int | None) -> None:
    place = source / PATCHES[index].path
    if times is None:
        place.unlink()
    else:
        place.write_text((place.read_text() + PATCHES[index].old + "\n") * (times // 2))
    before = texts(source)
    with pytest.raises(ToolingError, match=f"found it {times or 0} times; this is not the source of Horovod"):
        apply_patches(source)
    assert texts(source) == before


def test_an_unknown_source_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    sdist = tmp_path / "horovod-0.28.1.tar.gz"
    sdist.write_bytes(b"something else")
    with pytest.raises(ToolingError, match=r"its SHA-256 is .*Delete it and try again"):
        unpack(sdist, tmp_path / "out")
    assert not (tmp_path / "out").exists()
