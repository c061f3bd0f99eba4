"""Run by every rank of a real world: ``ranks.py horovod|torch|mpi|tensorflow DIRECTORY CHECK…``.

Each check is a function of the ``Comms``. Its result goes to ``DIRECTORY/CHECK.RANK.json``; the tests compare.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousServer
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

# Each framework has a Horovod of its own, and a process uses one: which, our own modules decide when they are imported.
if sys.argv[1] == "tensorflow":
    import horovod.tensorflow as hvd
    import tensorflow as tf
    from horovod.tensorflow import mpi_ops
else:
    import horovod.torch as hvd
    from horovod.torch import mpi_ops

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Comms, current_world

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.contract.comms import wrapping

LIBRARY = "horovod" if sys.argv[1] == "tensorflow" else sys.argv[1]
LARGE = 2**62 + 1  # not representable as a float
LONGEST_S = 240
"""Then each rank prints its stacks and ends, before the test gives up and kills the launcher."""
HANGS_S = 5
"""A loop that has not come round for so long hangs. A slow one comes round."""

KINDS = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
)  # fmt: skip


def places(comms: Comms) -> Any:
    return [comms.rank(), comms.size(), comms.local_rank()]


def broadcast_from_each_root(comms: Comms) -> Any:
    seen = []
    for root in range(comms.size()):
        data = torch.full((1000,), comms.rank() + 1, dtype=torch.uint8)
        comms.broadcast(data, root=root, name=f"from.{root}")
        seen.append(data.unique().tolist())
    return seen


def broadcast_into_mapped_memory(comms: Comms) -> Any:
    descriptor = os.memfd_create("test")
    os.truncate(descriptor, 1 << 20)
    data = torch.frombuffer(mmap.mmap(descriptor, 1 << 20), dtype=torch.uint8)
    data.fill_(comms.rank() + 7)
    comms.broadcast(data[10:-10], root=1, name="mapped")
    seen = [os.pread(descriptor, 1, place)[0] for place in (9, 10, (1 << 20) - 11, (1 << 20) - 10)]
    os.close(descriptor)
    return seen


def broadcast_in_pieces(comms: Comms) -> Any:
    module: Any = sys.modules[type(comms).__module__]
    longest, module._PIECE = module._PIECE, 7
    try:
        data = torch.arange(100).to(torch.uint8) + comms.rank()
        comms.broadcast(data, root=1, name="pieces")
    finally:
        module._PIECE = longest
    return data.tolist()


def broadcast_of_nothing(comms: Comms) -> Any:
    comms.broadcast(torch.empty(0, dtype=torch.uint8), root=0, name="nothing")
    return comms.max(1, name="after_nothing")


def broadcast_refuses_what_is_not_flat_bytes(comms: Comms) -> Any:
    wrong = (torch.zeros(4), torch.zeros(2, 2, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)[::2])
    refused = 0
    for data in wrong:
        try:
            comms.broadcast(data, root=0, name="wrong")
        except UsageError:
            refused += 1
    return refused


def sums_of_every_type(comms: Comms) -> Any:
    seen = {}
    for kind in KINDS:
        data = (torch.arange(6).reshape(2, 3) + comms.rank()).to(kind)
        comms.sum(data, name=f"sum.{kind}")
        seen[str(kind)] = torch.view_as_real(data)[..., 0].tolist() if data.is_complex() else data.tolist()
    return seen


def sums_of_odd_shapes(comms: Comms) -> Any:
    transposed = torch.arange(6.0).reshape(2, 3).t()
    scalar = torch.tensor(2.0 * comms.rank())
    tracked = torch.ones(3, requires_grad=True)
    empty = torch.empty(0)
    for number, data in enumerate((transposed, scalar, tracked, empty)):
        comms.sum(data, name=f"odd.{number}")
    return [transposed.tolist(), scalar.item(), tracked.tolist(), empty.tolist()]


def sum_refuses_sparse(comms: Comms) -> Any:
    try:
        comms.sum(torch.eye(3).to_sparse(), name="sparse")
    except UsageError as error:
        return str(error)


def maxima(comms: Comms) -> Any:
    return [
        comms.max(comms.rank(), name="max"),
        comms.max(-comms.rank() - 5, name="negative"),
        comms.max(LARGE if comms.rank() == 1 else 0, name="large"),
    ]


def pending_maxima(comms: Comms) -> Any:
    first = comms.start_max(comms.rank(), name="first")
    second = comms.start_max(comms.rank() * 10, name="second")
    between = comms.max(7, name="between")
    return [second.wait(), first.wait(), first.wait(), between]


def dropped_maxima_leave_nothing(comms: Comms) -> Any:
    for number in range(50):
        comms.start_max(number, name="dropped")
    kept = comms.start_max(comms.rank() + 100, name="dropped")
    pins = getattr(sys.modules[type(comms).__module__], "_pins", ())
    return [kept.wait(), len(getattr(mpi_ops, "_handle_map", ())), len(pins)]


def dropped_on_one_rank_only(comms: Comms) -> Any:
    mine = comms.start_max(comms.rank() + 5, name="one")
    if comms.rank() == 0:
        del mine
        return comms.max(1, name="after/one of: them")
    return mine.wait() + comms.max(1, name="after/one of: them")


def an_earlier_one_keeps_its_result(comms: Comms) -> Any:
    earlier = comms.start_max(comms.rank() + 1, name="again")
    later = comms.start_max(comms.rank() + 11, name="again")
    return [earlier.wait(), later.wait()]


def two_doors_to_one_world(comms: Comms) -> Any:
    other = current_world.init(LIBRARY)
    mine, others = comms.start_max(comms.rank(), name="door.a"), other.start_max(comms.rank() + 20, name="door.b")
    return [mine.wait(), others.wait()]


def what_the_script_begins_is_counted(comms: Comms) -> Any:
    """By what was done, whether it counts; what a State does itself does not."""

    def ours() -> None:
        comms.broadcast(torch.zeros(3, dtype=torch.uint8), root=0, name="ours")
        comms.sum(torch.ones(3), name="ours")
        comms.max(3, name="ours")

    def its_own() -> None:
        if LIBRARY == "horovod":
            hvd.allreduce(torch.ones(3))
        else:
            distributed.all_reduce(torch.ones(3))

    def with_ddp() -> None:
        net = DistributedDataParallel(torch.nn.Linear(3, 1))
        begun = comms.begun_by_script()  # DDP compares parameters when it is made
        net(torch.ones(3)).sum().backward()
        assert comms.begun_by_script() > begun

    def in_a_graph() -> None:
        tf.function(lambda: hvd.allreduce(tf.ones(3)))()

    done = {"ours": ours}
    if sys.argv[1] == "tensorflow":
        done |= {"its own": lambda: hvd.allreduce(tf.ones(3)), "in a graph": in_a_graph}
    else:
        done |= {"wrapped": lambda: wrapping.together(comms, wrapping.sgd)}
    done |= {"its own": its_own} if sys.argv[1] not in ("mpi", "tensorflow") else {}
    done |= {"with DDP": with_ddp} if sys.argv[1] == "torch" else {}
    seen = {}
    for name, do in done.items():
        before = comms.begun_by_script()
        do()
        after = comms.begun_by_script()
        seen[name] = None if before is None or after is None else after > before
    return seen


def _reset(comms: Comms) -> None:
    """Reset; with Horovod each world has a rendezvous server of its own.

    Under ``horovodrun`` without an elastic driver all worlds share the keys of one: an early process would read where
    its peers listened in the world before.
    """
    if LIBRARY != "horovod":
        return comms.reset()
    here = Path(sys.argv[2])
    join, number, ranks = hvd.init, len(list(here.glob(f"left.{comms.rank()}.*"))), comms.size()

    def join_when_all_have_left() -> None:
        if RANK == 0:
            server = RendezvousServer()
            (here / f"server.{number}").write_text(str(server.start()))
            server.init(get_host_assignments([HostInfo("localhost", ranks)], ranks))
        (here / f"left.{RANK}.{number}").touch()
        while len(list(here.glob(f"left.*.{number}"))) < ranks:
            time.sleep(0.001)
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = (here / f"server.{number}").read_text()
        join()

    hvd.init = join_when_all_have_left
    try:
        comms.reset()
    finally:
        hvd.init = join


def _when_all_have_come(comms: Comms, mark: str) -> None:
    here = Path(sys.argv[2])
    (here / f"{mark}.{comms.rank()}").touch()
    while len(list(here.glob(f"{mark}.*"))) < comms.size():
        time.sleep(0.001)


def reset_joins_the_next_world(comms: Comms) -> Any:
    stale = comms.start_max(comms.rank(), name="stale")
    dropped = comms.start_max(comms.rank(), name="dropped")
    del dropped
    _when_all_have_come(comms, "begun")  # Horovod begins nothing more once one rank has left
    _reset(comms)
    fresh = comms.start_max(comms.rank() + 1000, name="stale")
    try:
        told = str(stale.wait())
    except HorovodInternalError:
        told = "its world is gone"
    return [told, fresh.wait(), comms.max(comms.rank(), name="max"), comms.size()]


def stock_handle_takes_anothers_result(comms: Comms) -> Any:
    """Use a handle of an earlier world with stock Horovod."""
    stale = hvd.allreduce_async(torch.tensor([1]), op=hvd.Max, name="stale")
    for number in range(stale):  # those of the next world have low numbers
        hvd.allreduce(torch.tensor([number]), op=hvd.Max, name=f"other.{number}")
    _reset(comms)
    fresh = [hvd.allreduce_async(torch.tensor([1000 + n]), op=hvd.Max, name=f"fresh.{n}") for n in range(stale + 1)]
    got = hvd.synchronize(stale).item()
    for handle in fresh:
        hvd.synchronize(handle)
    return got


def losing_a_peer_with_much_under_way(comms: Comms) -> Any:
    """The last rank ends while the others begin operations at full speed. Must come last."""
    here, others = Path(sys.argv[2]), comms.size() - 1
    if comms.rank() == others:
        while len(list(here.glob("busy.*"))) < others:
            time.sleep(0.001)
        write("losing_a_peer_with_much_under_way", "gone")
        os._exit(0)  # with another exit code Horovod's launcher ends the others
    begun = 0
    try:
        while True:
            if begun % 100 == 0:
                faulthandler.dump_traceback_later(HANGS_S, exit=True)
            hvd.allreduce_async(torch.ones(1), name=f"under_way.{begun}")
            begun += 1
            if begun == 300:
                (here / f"busy.{comms.rank()}").touch()
            if begun > 300:
                time.sleep(0.0002)
    except HorovodInternalError:
        return ["lost", *_errors(comms)]


# of TensorFlow: its operations block, and say which kind of error it is


def operations_that_do_not_fit(comms: Comms) -> Any:
    """Ours and the script's own, with another length on each rank; then the world is used as before."""
    data = torch.zeros(3 + comms.rank())
    seen = []
    for use in (
        lambda: comms.sum(data, name="misfit"),
        lambda: comms.broadcast(data.to(torch.uint8), root=0, name="misfit.bytes"),
        lambda: _in_a_graph(data),
    ):
        try:
            use()
        except Exception as error:
            lost = isinstance(error, HorovodInternalError) or comms.lost_by(error)
            seen.append([type(error).__name__, lost])
    return [*seen, comms.max(comms.rank(), name="after misfits")]


def _in_a_graph(data: torch.Tensor) -> Any:
    return tf.function(lambda given: hvd.allreduce(given, name="of_the_script"))(tf.constant(data.numpy()))


def an_error_of_another_kind(comms: Comms) -> Any:
    """Whether errors that name no collective count as a loss."""
    errors = (tf.errors.UnknownError(None, None, "the disk is full"), RuntimeError("HorovodAllreduce"))
    return [comms.lost_by(error) for error in errors]


def losing_a_peer_that_others_wait_for(comms: Comms) -> Any:
    """The last rank ends while the others are in an operation. Must come last."""
    here = Path(sys.argv[2])
    comms.max(0, name="all here")
    if comms.rank() == comms.size() - 1:
        time.sleep(0.2)  # the others are in theirs: they have no way to tell
        (here / "gone").touch()
        write("losing_a_peer_that_others_wait_for", "gone")
        os._exit(0)
    try:
        comms.max(0, name="without the last")
    except HorovodInternalError as error:
        after_s = time.time() - (here / "gone").stat().st_mtime
        seen = ["lost", "\n" in str(error), after_s]
    try:
        _in_a_graph(torch.ones(3))
    except tf.errors.OpError as error:
        seen.append(comms.lost_by(error))
    return [*seen, *_errors(comms)]


def stock_losing_a_peer_with_much_under_way(comms: Comms) -> Any:
    """The same with the unchanged Horovod library: torch needs the interpreter for what Horovod frees."""
    mpi_ops.mpi_lib = mpi_ops.mpi_lib._library
    return losing_a_peer_with_much_under_way(comms)


def _errors(comms: Comms) -> list[str]:
    """Use a world that has lost its last rank in every way."""
    data = torch.zeros(9, dtype=torch.uint8)
    uses: list[Callable[[], object]] = [
        lambda: comms.start_max(1, name="pending").wait(),
        lambda: comms.sum(torch.ones(3), name="after"),
        lambda: comms.broadcast(data, root=comms.size() - 1, name="after"),
    ]
    seen = []
    for use in uses:
        try:
            use()
        except HorovodInternalError:
            seen.append("lost")
    return seen


def leaving_does_not_wait_for_living_peers(comms: Comms) -> Any:
    """Rank 0 leaves with a maximum pending that rank 1 never answers; then rank 1 has lost it. Must come last."""
    comms.max(1, name="all_here")
    if comms.rank() == 0:
        comms.start_max(1, name="unanswered")
        write("leaving_does_not_wait_for_living_peers", "leaving")
        return comms.reset()
    while not Path(sys.argv[2], "ended.0").exists():  # the test writes it
        time.sleep(0.01)
    return _errors(comms)


def write(name: str, seen: Any) -> None:
    draft = Path(sys.argv[2]) / f"{name}.{RANK}.tmp"
    draft.write_text(json.dumps(seen))
    draft.replace(draft.with_suffix(".json"))


def main() -> None:
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)
    comms = current_world.init(LIBRARY)
    globals()["RANK"] = comms.rank()
    for name in sys.argv[3:]:
        check: Callable[[Comms], Any] = globals().get(name) or getattr(wrapping, name)
        print(f"rank {RANK}: {name}", file=sys.stderr, flush=True)
        write(name, check(comms))


if __name__ == "__main__":
    RANK = 0
    current_world.with_horovod.fence_horovod()
    torch.set_num_threads(1)
    main()
