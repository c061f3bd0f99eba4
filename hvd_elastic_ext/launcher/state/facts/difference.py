"""How the newest world differs from the wanted one, mostly without comparing each of thousands of processes."""

from __future__ import annotations

from hvd_elastic_ext.launcher.rules.membership.calls import Gate
from hvd_elastic_ext.launcher.rules.membership.next_world import Difference, Process, Stage
from hvd_elastic_ext.launcher.state.job import JobState


def difference(job: JobState) -> Difference:
    """The input of :func:`next_world.decide_by`.

    In rare cases it compares each process: no member lives, one was killed or asks for a rank again, some process is
    done with training, or some are lost and others in seats that are not wanted.
    """
    members, roster = job.world.members, job.roster
    present, lost = roster.present(members), roster.absent(members)
    live, asked_again = Stage.LIVE, job.rendezvous.asked_again
    plain = bool(present) and (not asked_again or asked_again.isdisjoint(members))
    few = [each for each in roster.unusual if each.killed is not None or each.done or each.stage is not live]
    over = job.outcome.finishing or any(each.done for each in few)
    if not plain or over or (few and not roster.present_ids(members).isdisjoint(map(id, few))):
        return Difference.of(job.situation)
    formed, settled, begun = job.formed, job.settled, job.world.begun
    staying = [each.life for each in present] if lost else members
    if not (lost or (formed and settled)):
        return Difference(staying, formed=formed, settled=settled, begun=begun)
    outside, unwanted = job.apart.outside, job.apart.unwanted
    unwanted = unwanted.difference([life.seat for life in lost]) if unwanted else unwanted
    if lost and unwanted:
        return Difference.of(job.situation)
    outside = outside.union([life.seat for life in lost if life.seat in job.wanted_seats]) if lost else outside
    leaves_by = job.leaves_by if outside or unwanted else {}
    there = [roster.process(seat, leaves_by=leaves_by) for seat in outside]
    if (gate := job.gate) is not None:
        there = [_at_the_gate(gate, each) for each in there if each is None or gate.stage(each.seat, each.stage)]
    parked = [each for each in there if each is not None and each.stage is Stage.PARKED]
    if len(parked) > 1:
        seniority = {seat: number for number, seat in enumerate(job.wanted)}
        parked.sort(key=lambda process: seniority[process.seat])
    leaving = (
        [roster.process(life.seat, leaves_by=leaves_by) for life in members if life.seat in unwanted]
        if unwanted
        else []
    )
    return Difference(
        [life for life in members if life.seat not in unwanted] if unwanted else staying,
        [process for process in leaving if process is not None],
        lost=lost,
        parked=parked,
        coming=sum(each is None or each.stage is Stage.BOOTING for each in there),
        formed=formed,
        settled=settled,
        begun=begun,
    )


def _at_the_gate(gate: Gate, process: Process | None) -> Process | None:
    """A process as the next world sees it: one that catches up with the others is not ready."""
    return None if process is None else process._replace(stage=gate.stage(process.seat, process.stage) or process.stage)
