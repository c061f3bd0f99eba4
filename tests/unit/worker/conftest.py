"""Memory files as whoever starts training processes hands them down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.worker.made_commits import memory_files


@pytest.fixture
def descriptor() -> Iterator[int]:
    with memory_files(1) as [descriptor]:
        yield descriptor


@pytest.fixture
def pair() -> Iterator[list[int]]:
    with memory_files() as descriptors:
        yield descriptors


@pytest.fixture
def memory() -> Iterator[list[int]]:
    with memory_files(3) as descriptors:
        yield descriptors
