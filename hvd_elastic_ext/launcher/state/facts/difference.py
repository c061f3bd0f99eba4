"""How the newest world differs from the wanted one."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.next_world import Difference, Stage


def difference(job: JobState) -> Difference:
    """The input of :func:`next_world.decide_by`.

    While thousands of processes come into a world, there is a look after nearly every message. As long as all members
    are there, and no seat beyond theirs is wanted or they have not all come yet, they need no comparison one by one.
    """
    members, roster, live = job.world.members, job.roster, Stage.LIVE
    whole = all(each.stage is live and each.killed is None for each in roster.present(members))
    over = job.outcome.finishing or any(each.done for each in roster.workers.values())
    if not whole or over or not job.standing:
        return Difference.of(job.situation)
    formed, settled, begun = job.formed, job.settled, job.world.begun
    if not (formed and settled):
        return Difference(members, formed=formed, settled=settled, begun=begun)
    wanted = frozenset(job.wanted)
    if not wanted <= {life.seat for life in members}:
        return Difference.of(job.situation)
    unwanted = [life.seat for life in members if life.seat not in wanted]
    leaves_by = job.leaves_by if unwanted else {}
    leaving = [roster.process(seat, leaves_by=leaves_by) for seat in unwanted]
    return Difference(
        [life for life in members if life.seat in wanted] if unwanted else members,
        [process for process in leaving if process is not None],
        begun=begun,
    )
