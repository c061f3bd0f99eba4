"""Messages about a job that is stopped: what happens now, and from where the same command continues. Pure."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.launcher.checkpoints import save_then_stop
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.stalls import uneven

COMMAND: Final = "`hvd-elastic stop`"
"""How the command that stops a job is named where a signal is named otherwise."""
CANNOT_GO_ON: Final = "the same command cannot go on"
"""What a job says at its end if no job can resume from any of its checkpoints."""


def what_happens(signal: str, job: JobState, *, ends_already: bool, grace_s: float) -> str:
    """What a signal, or :data:`COMMAND`, causes, in the order in which it happens.

    ``ends_already``: the job was ending when the signal came, so its processes are killed. ``grace_s``: the time in
    seconds that they have otherwise.
    """
    if ends_already:
        return f"{signal}: the job is ending already; all of its processes are killed now"
    time = f"its processes have {grace_s:g} s to end"
    if job.outcome.failure is not None:
        return f"{signal}: the job ends; {time}"
    most_s = save_then_stop.stop_limit_s(
        by_hand=signal in ("SIGINT", COMMAND), on_its_way=not job.checkpoints.failed_in_a_row
    )
    members = job.roster.present(job.world.members)
    if members and all(worker.done for worker in members):
        most_s = save_then_stop.longest_s(job.cost.durable_s)  # the end of training is worth more time
    again = f"a second {COMMAND}" if signal == COMMAND else "a second signal"
    return (
        f"{signal}: the job makes a last checkpoint, in {most_s:g} s at most; then {time}; "
        f"{again} ends it without that checkpoint"
    )


def how_it_ended(job: JobState) -> str:
    """How a job ended without a failure."""
    alone = job.loopless.done_unjoined
    if alone and not (job.world.begun or job.world.members):
        slots = "1 slot" if len(alone) == 1 else f"all {len(alone)} slots"
        return f"the program has ended well in {slots}, and no process asked for a world: none has trained with Horovod"
    parts = ("training is done", uneven(job.outcome.early, job.outcome.more), no_common_result(job))
    return "; ".join(filter(None, parts))


def no_common_result(job: JobState) -> str:
    """The remedy for a job whose ranks trained alone; empty if they did not."""
    if (why := job.world.trains_alone) is None:
        return ""
    return (
        f"but each rank trained alone ({why}), so no rank has learnt from the data of all: wrap the optimizer with "
        "hvd.DistributedOptimizer or elastic.wrap, and train again; a script that averages by itself can ignore this"
    )


def what_is_kept(job: JobState) -> str:
    """From what a stopped job continues, or which options would have kept that; empty if it has not trained."""
    return "; ".join(filter(None, (_kept(job), no_common_result(job))))


def _kept(job: JobState) -> str:
    path, step = job.checkpoints.newest
    useless = job.checkpoints.useless
    if path is None and useless is not None:
        return (
            f"{CANNOT_GO_ON}: no job can resume from {useless.path}, of step {useless.step}: "
            f"{useless.why}; mend that and name another --checkpoint-dir, to train from the beginning"
        )
    if path is not None:
        return f"the same command goes on after step {step}, with the checkpoint {path}{_lost(job, step)}"
    if not job.world.begun:
        return ""
    if job.options.durability is not None:
        return f"no checkpoint is complete; the same command starts from the beginning{_lost(job, None)}"
    needs = "" if job.loopless.kept else "a State of hvd_elastic_ext or --adopt, and "
    return f"no checkpoint was kept; with {needs}--checkpoint-every auto the same command would go on where it stopped"


def _lost(job: JobState, kept: int | None) -> str:
    """How many steps after step ``kept`` are lost, and why; empty if none is. None: nothing is kept."""
    part, useless, why = job.before_exit, job.checkpoints.useless, job.before_exit.lacks
    reached = part.reached
    if useless is not None and kept is not None:
        reached = max(reached, useless.step)
        why = f"no job can resume from {useless.path}, of step {useless.step}: {useless.why}"
    lost = reached - (kept or 0)
    if lost <= 0 or not why:
        return ""
    since = "" if kept is None else " since then"
    return f"; {lost} step{'s' * (lost > 1)}{since} {'are' if lost > 1 else 'is'} lost: {why}"
