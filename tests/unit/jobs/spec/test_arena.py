"""arena's options are taken, refused with a remedy, or off: none vanishes."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.spec import words
from hvd_elastic_ext.jobs.spec import words as readings


def test_a_switch_is_on_or_off_as_arena_writes_it() -> None:
    given = ["--gang=true", "--spot-instance=F", "--rdma=false", "--env=A=true", "--gpus=1", "--hostIPC=1"]
    assert words.switched(given) == ["--gang", "--env=A=true", "--gpus=1", "--hostIPC"]
    assert [words.is_off(word) for word in ("--rdma=false", "--rdma", "--rdma=true", "--gpus=0")] == [
        *(True, False, False, False)
    ]


@pytest.mark.parametrize("words", [["--queue"], ["--queue", "--gpus=1"]])
def test_a_queue_without_a_name_is_arenas_switch(words: list[str]) -> None:
    with pytest.raises(
        UsageError,
        match=r"--queue without a value is arena's, and is not accepted here: .*name a queue: --queue kueue/NAME",
    ):
        readings.refuse(words)
    readings.refuse(["--queue", "kueue/q"])
    readings.refuse(["--queue=kueue/q"])
