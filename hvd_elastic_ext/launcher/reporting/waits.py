"""What a job waits for, before it trains and while it trains. It decides nothing.

Lines come at the pace of :mod:`hvd_elastic_ext.core.pace`. ``--wait-lines`` changes how rare lines become if training
does not wait for their subject. The status line of a terminal and ``hvd-elastic status`` show all waits at any time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.pace import WAIT, Lines
from hvd_elastic_ext.launcher.checkpoints import save_then_stop
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import longest_s
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.driver.roster import GO_LIVE_S, STARTS_S
from hvd_elastic_ext.launcher.driver.wait import SOON_S, Wait, first_few, line, log_wait
from hvd_elastic_ext.launcher.health import blame, link_loss, pace, stalls
from hvd_elastic_ext.launcher.health.host_requests import NEEDED, Starting
from hvd_elastic_ext.launcher.health.pace import next_line_hint
from hvd_elastic_ext.launcher.health.silence import limit_s
from hvd_elastic_ext.launcher.membership import calls, hosts
from hvd_elastic_ext.launcher.membership.engines import ChangeAction
from hvd_elastic_ext.launcher.membership.next_world import STILL_FORMING, Stage
from hvd_elastic_ext.launcher.membership.shortage import NOT_READY, list_refused, why_too_few

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState

log = logging.getLogger(__name__)


SILENT: Final = 0.4
"""The part of ``--heartbeat-timeout`` after which a silence is logged, if that is longer than :data:`SOON_S`. In large
jobs heartbeats are seconds apart.
"""


NOT_CONNECTED: Final = "has not connected yet"


STEPS_ALONE: Final = "does steps, alone: before hvd.init(), or outside a function with @elastic.run"
"""With hvd_elastic_ext.torch a newcomer trains in a world of its own from hvd.init() until the loop."""


WAITS_FOR_RECORD: Final = "waits in hvd.init() for what collectives returned to the others before their training loop"


WAITS_FOR_LOOP: Final = "waits in hvd.init(): the world has not begun its training loop (elastic.run)"


STANDBY: Final = "--standby-timeout"


FAILS: Final = ", then the job fails (--elastic-timeout)"


ARRIVES: Final = "it ends when that commit has arrived, or its holder is gone"


RANKED: Final = "it ends when its newest commit is where it is needed, or a process has failed"


INITIALIZED: Final = "it ends when that process has called hvd.init(), or has failed"


CONNECTED: Final = "it ends when they are connected, or one has failed"


FIREWALL: Final = "; look for a firewall between the hosts"


FIREWALL_S: Final = 10.0
"""After this many seconds without a connection, the line of a world on several hosts names firewalls."""


FAILED: Final = "it ends with the process there; Ctrl-C ends the job"


FAILED_LONG: Final = "it ends with the process there, which `py-spy dump --pid` shows; Ctrl-C ends the job"


EXITS_S: Final = 10.0
"""Seconds that a process may take to exit before a line says how to look at it."""


AGREED: Final = "it ends when they have the commit, or one has failed"


def status(job: JobState) -> str:
    """What the job does at this moment, in one short line for a terminal."""
    wait = waits_for(job, brief=False)
    if wait is not None:
        return line(wait, job.now)
    members = job.roster.present(job.world.members)
    parts = [f"world {job.generation}", f"size {len(members)}", *calls.in_progress(members)]
    if step := max((worker.step for worker in members), default=0):
        parts.append(f"step {step}")
    times = [worker.step_s for worker in members if worker.step_s]
    if (pause := pace.pause_of(job)) is not None:
        parts.append(f"{pause.text}; {pace.what_follows(job, pause)}")
    elif times:
        parts.append(f"{1 / max(times):.3g} steps/s")
    if job.world.trains_alone is not None:
        parts.append("EACH RANK TRAINS ALONE (`hvd-elastic events` says why)")
    parts += calls.lines(job)
    if newcomers := {host: one for host, one in starting(job, job.now).items() if not one.outside}:
        parts.append(f"starting: {first_few([f'{host} ({one.brief})' for host, one in newcomers.items()])}")
    if (wanted := job.scaling.wanted) is not None and wanted != len({life.seat.host for life in job.world.members}):
        parts.append(f"hosts asked for: {wanted}")
    if blocked := blame.blocked(job):
        parts.append(f"blocked: {first_few(blocked)}")
    if needed := hosts.needed_unlisted(job):
        parts.append(f"not listed, but needed until another host can take its place: {_names(needed)}")
    if refused := list_refused(job):
        parts.append(refused)
    if job.scaling.reason:
        parts.append(f"autoscale: {job.scaling.reason}")
    return ", ".join(parts)


def waits_for(job: JobState, *, brief: bool = True) -> Wait | None:
    """What the job waits for; None if it trains, or waits for nothing. ``brief``: as in :func:`health.blocked`."""
    if job.ending:
        return _end(job)
    if job.before_exit.why is not None:
        return _last_checkpoint(job, save_then_stop.last_checkpoint_until(job))
    if job.adoption.until is not None:
        names = _names(job.adoption.missing)
        return Wait(f"for hosts of the launcher before this one: {names}", job.adoption.until) if names else None
    if job.link_loss.since is not None:
        then = ", then hosts that are not heard count as failed"
        return Wait("no host is heard: is this machine's own link down?", link_loss.link_is_back_by(job), then)
    if job.custody.holds_back:
        decision = job.custody.decision
        return Wait(f"for the newest commit: {decision.reason}", decision.until, ends=ARRIVES)
    if (failing := _failing(job)) is not None:
        return failing
    if (leaving := _leaving(job)) is not None:
        return leaving
    if job.clean_exits.until is not None:
        names = first_few([each.who for each in job.clean_exits.left.values()])
        what = f"for the other ranks: {names} left the training function with exit code 0"
        return Wait(what, job.clean_exits.until, ", then training goes on without it")
    if not job.standing:
        return _save(job) or _shortage(job, brief=brief)
    if not job.formed:
        return _ends_of_the_done(job) or _forming(job)
    return _silence(job) or _after_last_checkpoint(job) or _ends_of_the_done(job) or _first_step(job)


def starting(job: JobState, now: float) -> dict[str, Starting]:
    """By host, the oldest agent or process that was started there and is in no world yet; as of ``now`` (mono). One
    that waits outside until the job ends only if no other one is.
    """
    if job.outcome.over:
        return {}
    join_s, boot_s = job.roster.join_timeout_s, job.options.standby_timeout_s
    found = {
        name: Starting("its agent", now - agent.since, NOT_CONNECTED, agent.since + join_s - now)
        for name, agent in job.roster.agents.items()
        if not agent.last_message_at
    }
    apart, outside = calls.apart(job), calls.outside(job)
    for seat, worker in job.roster.workers.items():
        if worker.generation or worker.killed is not None or worker.leaving is not None:
            continue
        what, since_s = f"the process in slot {seat.slot}", now - worker.created
        one = Starting(what, since_s, apart.get(seat) or _joins(job))
        if worker.stage is Stage.BOOTING and worker.at_init:
            one = Starting(what, since_s, WAITS_FOR_LOOP if worker.waits_alone_since is None else WAITS_FOR_RECORD)
        elif worker.stage is Stage.BOOTING:
            why = apart.get(seat) or (NOT_READY if worker.step_s is None else STEPS_ALONE)
            one = Starting(what, since_s, why, worker.since + boot_s - now, STANDBY)
        one = one._replace(outside=seat in outside)
        known = found.get(seat.host)
        if known is None or (known.outside, one.since_s) > (one.outside, known.since_s):
            found[seat.host] = one
    return found


def _joins(job: JobState) -> str:
    """What a newcomer that is ready waits for."""
    if not job.world.members:
        return "waits for its world"
    if job.restarting.change is not None:
        return f"joins once world {job.generation} has ended"
    if job.settled:
        return f"joins at a commit of world {job.generation}"
    return f"joins once world {job.generation} trains"


def slow_starts(job: JobState) -> dict[str, Starting]:
    """Of :func:`starting`, what takes :data:`SOON_S` or more while the job trains. Cheap if there is none."""
    roster = job.roster
    if len(roster.workers) <= len(job.world.members) and all(agent.last_message_at for agent in roster.agents.values()):
        return {}
    return {host: one for host, one in starting(job, job.now).items() if one.since_s >= SOON_S}


def lacking(job: JobState) -> list[str]:
    """What a job that trains lacks of its listed hosts, and until when."""
    found = []
    if refused := list_refused(job):
        found.append(f"{refused}; the hosts before it are kept until it is corrected")
    if blocked := blame.blocked(job, brief=True, for_good=False):
        found.append(f"blocked: {first_few(blocked)}")
    return found


def unlisted_in_use(job: JobState, published: HostSet) -> dict[Host, str]:
    """Hosts in use that the newest list, ``published``, does not name, and the reasons."""
    if job.outcome.over:
        return {}
    if job.fleet.empty_list_refused:
        why = "the newest list names no host: those known before are kept while they work"
        return {host: why for host in job.fleet.hosts if host.name not in published}
    found, needed = {}, hosts.needed_unlisted(job)
    for name, agent in job.roster.agents.items():
        if name in job.adoption.missing:
            found[agent.host] = "an earlier launcher started its agent, which has not connected to this one yet"
        elif name not in published:
            leaves = ", and leaves at its next step" if job.roster.on(name) else ""
            leaves = NEEDED if name in needed else leaves
            found[agent.host] = f"it is not listed any more{leaves}"
    return {host: why for host, why in found.items() if host.name not in published}


def _end(job: JobState) -> Wait | None:
    state, final = job.shutdown, job.final_checkpoint
    if job.outcome.failure is None and final.since is not None and not final.over:
        return _last_checkpoint(job, final.since + longest_s(job.cost.durable_s))
    if job.outcome.failure is None and job.roster.workers and (wait := _ends_of_the_done(job)) is not None:
        return wait
    if state.gone_by is not None:
        names = first_few(sorted(state.pending | (state.asked & job.roster.agents.keys())))
        return Wait(f"for the end on {names}, told without a connection", state.gone_by) if names else None
    names = _names(state.running or job.roster.agents)
    if not names:
        return None
    if state.ends_by is None:  # training is done for some
        return Wait(f"for the end of training on {names}", ends="it ends with the processes there; Ctrl-C ends them")
    return Wait(f"for the end on {names}", state.ends_by)


def _ends_of_the_done(job: JobState) -> Wait | None:
    """Training is done on all ranks, and their processes have not ended: a script may have more to do."""
    present = job.roster.present(job.world.members)
    members = present if job.formed else [each for each in present if not each.is_newcomer]
    if not members or not all(worker.done for worker in members):
        return None
    names = first_few([str(worker.seat) for worker in members])
    after = "" if job.final_checkpoint.over else ", and then the last checkpoint is made"
    last_step = max(worker.moved_at for worker in members) or None  # 0 of a process that did none
    after += "" if job.formed else "; no newcomer joins"
    what = f"for the end of {names}: training is done, the script is not{after}"
    return Wait(what, job.shutdown.ends_by, since=last_step, ends="it ends with the script; Ctrl-C ends it")


def _last_checkpoint(job: JobState, until: float | None) -> Wait:
    doing = _saving(job)
    attempt = job.checkpoints.attempt
    older = job.before_exit.why is not None and attempt is not None and not (attempt.stay or attempt.at_rest)
    what = "for the last checkpoint" + (f": {'first the one before it: ' if older else ''}{doing}" if doing else "")
    then = ", then the job ends without it"
    if _commits_first(job) and not older:  # a script that makes no commit is not waited for until the end
        until, then = job.before_exit.commit_by, ", then the processes are ended, and the last commit is saved"
    return Wait(what, until, f"{then}; a second Ctrl-C ends it now" if save_then_stop.ends_by_hand(job) else then)


def _commits_first(job: JobState) -> bool:
    """Whether the last checkpoint of a job that has to end waits for the next commit of its processes."""
    attempt, part = job.checkpoints.attempt, job.before_exit
    waits = part.why is not None and job.standing and job.now < part.commit_by
    return waits and attempt is not None and len(attempt.kept) < len(attempt.ranks)


def _after_last_checkpoint(job: JobState) -> Wait | None:
    """No process trains beyond the checkpoint that was made because hosts are about to go."""
    if job.checkpoints.staying is None:
        return None
    what = "for other hosts: the last checkpoint is made, and hosts that training needs are about to go"
    return Wait(what, job.before_preemption.goes_on_at(job.preemption.all_by), ", then training goes on")


def _save(job: JobState) -> Wait | None:
    """Memory is saved because no process trains: the job will sleep if that lasts."""
    state, attempt = job.before_sleep, job.checkpoints.attempt
    if state.since is None or not (doing := _saving(job)):
        return None
    at = state.asked_at + save_then_stop.ANSWER_S if attempt is None else attempt.deadline
    until = at if math.isfinite(at) else None  # infinite before the first write
    what = f"for the checkpoint before the job sleeps: {doing}"
    return Wait(what, until, ", then it is tried again", ends="it ends when the checkpoint is complete, or has failed")


def _saving(job: JobState) -> str:
    """How far the checkpoint on its way is; empty if there is none."""
    state, attempt = job.before_sleep, job.checkpoints.attempt
    if attempt is not None:
        if absent := [str(life.seat) for life in attempt.ranks if life not in attempt.kept]:
            return f"the commit is not kept yet by {first_few(absent)}"
        step = next(iter(attempt.kept.values())).step
        hosts = first_few(sorted(job.helpers[Purpose.CHECKPOINT]))
        return f"step {step} is {'completed' if attempt.sealing else 'written'} by {hosts}"
    if not job.helpers[Purpose.SLEEP]:
        return ""
    asked, stored = _names(job.helpers[Purpose.SLEEP]), state.known.stored
    if not state.known.looked or stored is None:
        return f"no answer yet from {asked} on what memory and storage hold"
    return f"step {stored.step} is read back by {asked}"


def _failing(job: JobState) -> Wait | None:
    """Processes whose script has raised an error and that have not ended yet: a large one takes seconds to end."""
    failing = [worker for worker in job.roster.workers.values() if worker.failure is not None and worker.killed is None]
    if not failing:
        return None
    ranks = [(worker, job.rank(worker.life)) for worker in failing]
    first = min(failing, key=lambda worker: worker.failed_at)
    names = [f"rank {rank} ({worker.seat})" if rank is not None else str(worker.seat) for worker, rank in ranks]
    who = "it" if len(failing) == 1 else str(first.seat)
    raised = "" if first.failure is None else first.failure[1]
    ends = FAILED if job.now - first.failed_at < EXITS_S else FAILED_LONG
    return Wait(f"for the end of {first_few(names)}: {who} raised {raised}", since=first.failed_at, ends=ends)


def _leaving(job: JobState) -> Wait | None:
    """Processes that end on purpose, because the next world has others: on a busy machine an exit takes seconds."""
    change = job.restarting.change
    members = [each for each in job.roster.present(job.world.members) if each.killed is None and not each.done]
    if change is None or change.move is not ChangeAction.DRAIN or not members:
        return None
    what = (
        f"for the end of world {job.generation}, as the next one begins: {first_few([each.seat for each in members])}"
    )
    then = ", then they are ended, and the next world begins"
    return Wait(what, change.ends_at, then, ends="it ends when they have come to their next commit, and left")


def _forming(job: JobState) -> Wait:
    waiting = job.rendezvous.waiting
    done = {worker.life for worker in job.roster.present(job.world.members) if worker.done}
    absent = [life for life in job.world.members if life not in waiting and life not in done]
    what = f"world {job.generation} forms"
    if done and not absent:
        what += f" when those that are done with training have ended: {first_few([each.seat for each in sorted(done)])}"
        return Wait(what, ends="it ends with the script there; Ctrl-C ends the job")
    if not absent:
        return Wait(what, ends=RANKED)
    what += f": not there yet: {first_few([life.seat for life in absent])}"
    members = [worker for worker in job.roster.present(job.world.members) if not worker.generation]
    new = [each.live_at for each in members if each.live_at is not None and each.life not in waiting]
    if len(new) < len(absent):
        limit_s = stalls.missing_limit_s(job)
        then = f"reported as stalled after {limit_s:g} s without progress"  # a step in the last world may take long
        return Wait(what, ends=f"it ends when they next call state.commit() or end; {then}")
    return Wait(what, min(new) + GO_LIVE_S, ", then a newcomer that is not there is ended")


def _first_step(job: JobState) -> Wait | None:
    """A world that has formed and does not train yet. A world that trains costs no look at its members."""
    what = f"for the first step of world {job.generation}"
    if job.decision.reason == STILL_FORMING.reason:
        members = job.roster.present(job.world.members)
        outside = [worker.life.seat for worker in members if worker.generation < job.generation]
        if outside and len(members) == 1:
            return Wait(f"{what}: not initialized yet: {first_few(outside)}", ends=INITIALIZED)
        if outside:
            lasts_s = job.now - max(worker.called_at or job.now for worker in members)
            apart = lasts_s >= FIREWALL_S and len({worker.seat.host for worker in members}) > 1
            ends = CONNECTED + (FIREWALL if apart else "")
            return Wait(f"{what}: not connected to the others yet: {first_few(outside)}", ends=ends)
        behind = [worker.life.seat for worker in members if worker.agreed < job.generation]
        if behind and any(worker.loops for worker in members):  # without an elastic loop they may train already
            return Wait(f"{what}: no agreement on the state yet: {first_few(behind)}", ends=AGREED)
    change = job.resize.change
    if change is None:
        return None if job.in_place else _begins(job, what)
    then = ", then the world is reported without its downtime"
    return Wait(f"{what} by rank 0 ({change.first.seat})", change.report_due, then)


def _begins(job: JobState, what: str) -> Wait | None:
    """New processes of a world that was reported before their first step: most of that time goes into imports."""
    members = job.roster.present(job.world.members)
    if not members or any(each.step or each.step_s or each.holds or each.done for each in members):
        return None
    absent = [each.seat for each in members if not each.loops]
    if not absent:
        return Wait(what, ends="it ends with that step, or when a process has failed")
    until = max(each.since for each in members) + STARTS_S
    if job.now >= until:
        return None  # a script without an elastic loop may train without reporting steps
    return Wait(f"{what}: imports and preparations by {first_few(absent)}", until, ", then no first step is waited for")


def _silence(job: JobState) -> Wait | None:
    """Silent hosts, and silent processes of other hosts: after ``--heartbeat-timeout`` they have failed."""
    limit = job.options.heartbeat_timeout_s
    after = max(SOON_S, SILENT * limit)
    hosts, workers = job.roster.agents.items(), job.roster.present(job.world.members)
    silent = {
        name: job.now - agent.last_message_at
        for name, agent in hosts
        if agent.last_message_at and job.now - agent.last_message_at > after
    }
    left = dict.fromkeys(silent, limit)
    for worker in [each for each in workers if each.silent_s > SOON_S]:
        most = limit_s(job, worker)
        if worker.silent_s > SILENT * most and worker.killed is None and worker.seat.host not in silent:
            silent[str(worker.seat)], left[str(worker.seat)] = worker.silent_s, most
    if not silent:
        return None
    first_s = min(most - silent[name] for name, most in left.items())
    then = ", then it counts as failed (--heartbeat-timeout)"
    return Wait(f"no heartbeat from {_names(silent)}", job.now + first_s, then, job.now - max(silent.values()))


def _shortage(job: JobState, *, brief: bool) -> Wait:
    workers = job.roster.workers
    fails_at = None if job.short_since is None else job.short_since + job.options.elastic_timeout_s
    early = {str(seat): worker for seat, worker in workers.items() if worker.stage is Stage.BOOTING}
    booting = {seat: worker for seat, worker in early.items() if not worker.at_init}
    if booting and job.options.limits.size(len(workers), begun=job.world.begun):
        latest = min(worker.since for worker in booting.values()) + job.options.standby_timeout_s
        alone = [seat for seat, worker in booting.items() if worker.step_s is not None]
        absent = [seat for seat in booting if seat not in alone]
        boots = [f"processes that are not at hvd.init() or elastic.run yet: {first_few(absent)}"] if absent else []
        if alone:
            where = "before hvd.init() or outside a function with @elastic.run"
            boots.append(f"processes that do steps, each alone, {where}: {first_few(alone)}")
        if fails_at is not None and fails_at < latest and not job.before_sleep.will_sleep:
            return Wait("; ".join(boots), fails_at, FAILS)
        return Wait("; ".join(boots), latest, f" ({STANDBY})")
    what = [job.decision.reason or "no world is formed yet"]
    if outside := [seat for seat, worker in early.items() if worker.at_init]:
        what.append(
            f"in hvd.init() until the others have begun their training loop, or have ended: {first_few(outside)}"
        )
    what += calls.lines(job)
    what += why_too_few(job)
    if done := [str(worker.seat) for worker in job.roster.present(job.world.members) if worker.done]:
        what.append(f"the others go on when processes that are done with training have ended: {first_few(done)}")
    if starting := {name: agent for name, agent in job.roster.agents.items() if not agent.last_message_at}:
        left_s = min(agent.since for agent in starting.values()) + job.roster.join_timeout_s - job.now
        what.append(f"the agent {NOT_CONNECTED}: {_names(starting)} (at most {max(0.0, left_s):.0f} s more)")
    if loads := [host for host in job.restore.hosts if (load := job.loading_of(host)) is not None and load.under_way]:
        what.append(f"the newest checkpoint is looked for, and loaded, by {first_few(loads)}")
    if blocked := blame.blocked(job, brief=brief):
        what.append(f"blocked: {first_few(blocked)}")
    if job.before_sleep.will_sleep:
        then = ", then it saves what memory holds and sleeps (--sleep-after)"
        return Wait("; ".join(what), save_then_stop.next_look(job), then)
    return Wait("; ".join(what), fails_at, FAILS, ends="add a host, or end the job")


def _names(hosts: Mapping[str, object]) -> str:
    return first_few(list(hosts))


def plan(job: JobState) -> Plan:
    """Log the wait that the last look has left, at its pace."""
    wait = waits_for(job)
    if wait is None:
        job.log_wait = None
        _log_slow_starts(job)
        _log_needed(job)
        _log_lacking(job)
        return NOTHING
    if job.log_wait is None:
        job.log_wait = Lines(job.now if wait.since is None else wait.since)
    if job.log_wait.due(job.now, wait.why):
        log_wait(wait, job.now)
    return Plan(job.log_wait.next_at(wait.why))


def _log_slow_starts(job: JobState) -> None:
    """Log each host with a start beside the training that is not ready, with its limit."""
    found, now = slow_starts(job), job.now
    job.log_beside = {host: lines for host, lines in job.log_beside.items() if host in found}
    for host, one in found.items():
        job.log_beside.setdefault(host, Lines(now - one.since_s))
    if due := _due(job, job.log_beside):
        hosts = first_few([f"{host}: {found[host]}" for host in due])
        log.info("beside the training: %s%s", hosts, _again(job, job.log_beside, due), extra=WAIT)


def _log_needed(job: JobState) -> None:
    """Log each host that is not listed any more, and why it does not leave."""
    needed = hosts.needed_unlisted(job)
    job.log_needed = {host: lines for host, lines in job.log_needed.items() if host in needed}
    for host, since in needed.items():
        job.log_needed.setdefault(host, Lines(since))
    if due := _due(job, job.log_needed):
        log.info(
            "no longer listed, but still in use: %s; without it the world is below --min-np %d; no limit: it "
            "leaves when another host can take its place%s",
            first_few(due),
            job.options.limits.least,
            _again(job, job.log_needed, due),
            extra=WAIT,
        )


def _due(job: JobState, lines: dict[str, Lines]) -> list[str]:
    """Hosts about which a line is due now."""
    return [host for host, each in lines.items() if each.due(job.now, most_s=job.options.wait_lines_s)]


def _again(job: JobState, lines: dict[str, Lines], hosts: list[str]) -> str:
    """When the next line about one of these hosts comes, if that is late."""
    return next_line_hint(min(lines[host].next_at(most_s=job.options.wait_lines_s) for host in hosts) - job.now)


def _log_lacking(job: JobState) -> None:
    """Log which hosts are blocked for a time, and that the newest list is refused. The beginning of each was logged."""
    fleet, ledger, most_s = job.fleet, job.faults.ledger, job.options.wait_lines_s
    if job.ending or (fleet.list_refused is None and ledger.next_release(job.now) is None):
        job.log_lacking = None
        return
    if job.log_lacking is None:
        job.log_lacking = Lines(job.now)
    if not (found := lacking(job)):
        return
    text = "; ".join(found)
    if job.log_lacking.due(job.now, text, most_s=most_s):
        again = next_line_hint(job.log_lacking.next_at(text, most_s=most_s) - job.now)
        log.info("while the job trains: %s%s", text, again, extra=WAIT)
