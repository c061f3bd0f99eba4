"""How the newest world differs from the wanted one."""

from __future__ import annotations

from hvd_elastic_ext.launcher.rules.membership.next_world import Difference, Stage
from hvd_elastic_ext.launcher.state.job import JobState


def difference(job: JobState) -> Difference:
    """The input of :func:`next_world.decide_by`.

    While thousands of processes come into a world, there is a look after nearly every message. As long as all members
    are there, and either go on as wanted or have not all come yet, they need no comparison one by one.
    """
    members, roster, live = job.world.members, job.roster, Stage.LIVE
    whole = all(each.stage is live and each.killed is None for each in roster.present(members))
    over = job.outcome.finishing or any(each.done for each in roster.workers.values())
    if whole and not over and job.standing:
        formed, settled = job.formed, job.settled
        if not (formed and settled) or frozenset(job.wanted) == {life.seat for life in members}:
            return Difference(members, formed=formed, settled=settled, begun=job.world.begun)
    return Difference.of(job.situation)
