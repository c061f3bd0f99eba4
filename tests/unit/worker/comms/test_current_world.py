"""The choice of the library for collectives, the worlds that are refused, and rank and size for samplers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import distributed

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world, horovod
from hvd_elastic_ext.worker.comms.current_world import LaunchFacts, check_world, decide, look, mpi_size

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "3"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "job", "WORLD_SIZE": "3"}


@pytest.mark.parametrize(
    ("facts", "library"),
    [
        (LaunchFacts(), "horovod"),
        (LaunchFacts(horovod_initialised=True, torch_initialised=True), "horovod"),
        (LaunchFacts(torch_initialised=True, mpi_size=3, mpi4py=True), "torch"),
        (LaunchFacts(torchrun=True), "torch"),
        (LaunchFacts(torch_in_place=True, horovod_launched=True, mpi_size=2, mpi4py=True), "torch"),
        (LaunchFacts(torchrun=True, horovod_launched=True), "horovod"),
        (LaunchFacts(torchrun=True, horovod_initialised=True), "horovod"),
        (LaunchFacts(mpi_size=3, mpi4py=True), "mpi"),
        (LaunchFacts(mpi_size=3, mpi4py=True, for_tensorflow=True), "horovod"),
        (LaunchFacts(torchrun=True, torch_described=True, for_tensorflow=True), "horovod"),
        (LaunchFacts(mpi_size=1, mpi4py=True), "mpi"),
        (LaunchFacts(mpi_size=3, mpi4py=True, horovod_launched=True), "horovod"),
        (LaunchFacts(mpi_size=3), "horovod"),
        (LaunchFacts(mpi4py=True), "horovod"),
    ],
)
def test_auto_takes_what_is_initialised_then_what_the_launcher_meant(facts, library):
    assert decide("auto", facts) == library


@pytest.mark.parametrize("wanted", ["horovod", "torch", "mpi"])
def test_a_communication_that_is_asked_for_is_taken_whatever_is_there(wanted):
    facts = LaunchFacts(horovod_initialised=True, torch_initialised=True, mpi_size=2, mpi4py=True)
    assert decide(wanted, facts) == wanted


def test_torch_needs_no_torchrun_where_the_environment_describes_the_world():
    assert decide("torch", LaunchFacts(torch_described=True)) == "torch"
    assert decide("torch", LaunchFacts(torch_in_place=True)) == "torch"


@pytest.mark.parametrize(
    ("wanted", "remedy"),
    [("torch", "start with torchrun"), ("mpi", "apt-get install openmpi-bin"), ("nccl", "choose auto, horovod")],
)
def test_an_impossible_choice_is_one_line_with_the_remedy(wanted, remedy):
    with pytest.raises(UsageError, match=remedy) as caught:
        decide(wanted, LaunchFacts())
    assert "\n" not in str(caught.value)


def test_the_environment_says_who_started_this_process():
    assert look({}).torchrun is False
    facts = look({"TORCHELASTIC_RUN_ID": "job", "OMPI_COMM_WORLD_SIZE": "2", "HOROVOD_SIZE": "1"})
    assert (facts.torchrun, facts.mpi_size, facts.horovod_launched, facts.torch_described) == (True, 2, True, False)
    described = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "1"}
    assert look(described).torch_described
    assert look({"HVD_ELASTIC_COLLECTIVES": "torch"}).torch_in_place


@pytest.mark.parametrize(
    ("environ", "size"), [({}, 0), (MPIRUN, 3), ({"PMI_SIZE": "4"}, 4), ({"OMPI_COMM_WORLD_SIZE": "many"}, 0)]
)
def test_the_size_that_mpirun_gives_is_read(environ, size):
    assert mpi_size(environ) == size


def refusal(size, environ):
    try:
        check_world(size, environ)
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.parametrize("environ", [MPIRUN, TORCHRUN, {"PMI_SIZE": "3"}])
def test_a_horovod_world_of_one_beside_other_processes_is_refused_with_the_remedy(environ):
    assert re.fullmatch(r".*started 3 processes.*elastic\.init.*", refusal(1, environ))


@pytest.mark.parametrize("environ", [MPIRUN, TORCHRUN])
def test_one_of_tensorflow_is_told_of_the_launcher_since_only_horovod_averages_there(environ, monkeypatch):
    monkeypatch.setattr(current_world, "FOR_TENSORFLOW", True)
    told = refusal(1, environ)
    assert "start it with hvd-elastic run" in told
    assert "elastic.init" not in told
    assert ("or build Horovod --with-mpi" in told) == (environ is MPIRUN)


@pytest.mark.parametrize(
    ("size", "environ"),
    [
        (1, {}),
        (3, MPIRUN),
        (1, {"OMPI_COMM_WORLD_SIZE": "1"}),
        (1, {"TORCHELASTIC_RUN_ID": "job", "WORLD_SIZE": "1"}),
        (1, {**MPIRUN, "HOROVOD_SIZE": "1"}),  # Horovod's launcher, started by something under mpirun, meant one
        (1, {**MPIRUN, "HOROVOD_ELASTIC": "1"}),  # parked, or the last one left
    ],
)
def test_a_world_of_the_right_size_is_not_refused(size, environ):
    assert refusal(size, environ) is None


def test_asking_for_the_rank_before_joining_a_world_says_what_to_call(monkeypatch):
    monkeypatch.setattr(horovod, "is_initialised", lambda: False)
    with pytest.raises(UsageError, match=r"elastic\.init"):
        current_world.rank()


class Fixed:
    """A world; without a place it is Horovod before ``hvd.init()``."""

    def __init__(self, *place: int) -> None:
        self._place = place

    def rank(self) -> int:
        if not self._place:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self._place[0]

    def size(self) -> int:
        return self._place[1]


@pytest.mark.parametrize(
    ("told", "horovods", "torchs", "place"),
    [
        (Fixed(2, 5), Fixed(1, 4), (3, 7), (2, 5)),
        (None, Fixed(1, 4), (3, 7), (1, 4)),
        (None, Fixed(), (3, 7), (3, 7)),
        (None, Fixed(), None, current_world.ALONE),
    ],
    ids=["told by a State", "Horovod", "torch.distributed", "in no world"],
)
def test_the_place_is_that_of_the_known_world_else_of_the_library_that_is_initialised(
    told: Any, horovods: Fixed, torchs: tuple[int, int] | None, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_world, "HorovodComms", lambda: horovods)
    monkeypatch.setattr(distributed, "is_initialized", lambda: torchs is not None)
    monkeypatch.setattr(distributed, "get_rank", lambda: torchs and torchs[0])
    monkeypatch.setattr(distributed, "get_world_size", lambda: torchs and torchs[1])
    current_world.use(told)
    assert current_world.current() == place
