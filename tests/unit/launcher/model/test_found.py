"""Histories in which the driver once violated a rule. Each is as short as possible; its comment says what went
wrong."""

from __future__ import annotations

import pytest

from tests.unit.launcher.model.history import script
from tests.unit.launcher.model.play import play

FOUND = {
    # Both agents were connected and held the commit. The job started again at batch 0, and reported no loss.
    "a newcomer does not begin anew while those who trained cool down": """
        0 hosts a:1 b:1; 6 hosts a:1 b:1 c:1; 7.3 kill a; 7.31 kill b""",
    # B has an older commit. A, which continued alone, was told to end while its process was starting again.
    "who is listed no more stays until its commits were handed over": """
        0 hosts a:1 b:1; 3 kill b; 3.5 slow b 6; 9 kill a; 9.5 hosts b:1""",
    # ``steps_lost`` was null, because no process was left that could report a roll-back.
    "steps that went with the last agent are counted": "0 hosts a:1; 6.2 agent a",
    "all agents killed at once cost steps that are told": "0 hosts a:1 b:1; 6.6 agent b; 6.6 agent a",
    # The other agent was killed. Only the agent of the blocked host still held a commit, and the job started at batch
    # 0.
    "a host that is blocked by hand still hands over what it holds": "0 hosts a:1 b:1; 4.9 block b 4; 4.9 agent a",
    "whose link is down is waited for when all others are gone": """
        0 hosts a:1 b:1; 2.6 agent a; 3.7 cut b; 5.5 kill b; 7.8 hosts a:1""",
    "a launcher that is started again does not let the only holder go": """
        0 hosts a:1 b:1; 1.15 sigterm b; 3.46 kill a; 3.46 launcher 5; 6.86 hosts b:1; 11.56 agent a""",
    # The slot of the killed process has an older commit than its neighbour, which continued without it.
    "a slot is chosen by what it holds not by its host": "0 hosts b:2 d:1; 4.7 kill d; 5 kill b/1; 7.2 kill b",
    # Its record was of an earlier start. With the new one it lost the result of a later call, and trained that again.
    "what a process has beyond the results that come with a record it keeps": """
        0 calls 12 3; 0 hosts a:1 b:1 c:1; 0.5 kill b; 5.2 cut a; 7.5 block b 4; 9.9 kill c""",
    # Only the report of the process's end names the commit.
    "a commit that one process sealed before it was killed is the newest": "0 hosts a:1 b:1; 6.15 kill a ahead",
    # It was asked for the commit that it had last reported. By then it held newer ones, and it counted as holding none.
    "a holder that has gone on since it last beat still holds": "0 hosts a:1 b:1; 4.3 sigterm a; 6.6 stop b",
    # The launcher killed it for its silence, and formed a world by the commits in its heartbeats until then.
    "a process stopped alone hands over what its end tells of": "0 hosts a:1 b:1; 3.46 leave a; 5.76 stop b",
    "a holder that is stopped and listed no more is not forgotten": """
        0 hosts a:1; 2.7 hosts b:1; 2.7 stop a; 7.4 garbage""",
    # After a restart of the launcher, the agent reports what memory holds. Heartbeats that are a second old follow.
    "a beat that is older than what an agent held does not make it hold less": """
        0 hosts b:1 c:1; 4.01 hosts b:1; 13.41 launcher 0; 14.51 agent b""",
    # The agent died, then the launcher. The next launcher did not report the loss.
    "what went with an agent is known to the next launcher": "0 hosts a:1; 10.2 agent a; 11.4 launcher 0",
    "what went with an agent while there was no launcher is counted": """
        0 hosts a:1 b:1; 2.9 notice a 5; 14.61 sigterm b; 16.91 launcher 1.5""",
    # It was asked for the commit that it had reported two commits before, and then it counted as holding none.
    "a holder whose link was down is asked for what it holds now": """
        0 hosts a:1 b:1; 4 kill a; 4 hosts c:1; 5.2 cut b; 5.3 kill b; 5.3 well""",
    "two launchers that die one after the other know what was lost": """
        0 hosts a:1; 5.5 agent a; 5.5 launcher 5; 11.3 launcher 0.5""",
    # The checkpoint "could not be loaded", although no host had tried to, and the job began at batch 0.
    "a checkpoint is loaded again when the memory that it was loaded into is gone": """
        0 store 2; 0 hosts a:1 b:1; 3.7 hosts a:1; 6.61 sigterm a; 9.61 sigterm a""",
    # One transfer failed with A's network. Only B, which is blocked, held commits, and it was not asked again.
    "a holder is not given up because the receivers link broke": """
        0 hosts a:1 b:1; 5.5 block b; 5.5 sigterm a; 8.1 cut a""",
    # A transfer had failed before the link was down. When the link came back, the holder's time was over at once.
    "a holder that is back is asked again": """
        0 hosts a:1 b:1; 2.6 kill a; 2.6 hosts a:1 b:1 c:1; 3.7 kill b; 4.91 agent c; 5.01 transfer 4
        5.01 cut b; 7.31 stop a; 12.61 well""",
    # The only host had no network for a while, and the job failed with "no process started training".
    "a launcher that finds nobody after a restart does not end a job that has trained": """
        0 hosts a:1; 7.8 launcher 5; 10.1 cut a; 22.2 well""",
    # The launcher found a running process, took that as enough, and continued from the older commit in its memory.
    "a launcher that is started again loads a checkpoint that is newer than what it finds": """
        0 store 2; 0 hosts a:1 b:1; 5.5 block b 4; 10.2 launcher 0; 10.2 cut a""",
    # Ranks were assigned in the look that killed it. The report of its end named a newer commit, and its agent was
    # allowed to end.
    "a process killed for its silence is heard before others go on without it": """
        0 hosts a:1 b:1; 4 hosts b:1; 4 hosts a:1 b:1; 4.01 launcher 1.5; 6.31 kill a; 6.41 stop b
        11.11 hosts a:1; 11.11 notice a; 11.12 kill a""",
    # A has an older commit. Only the report of the process's end names what B sealed before it was stopped, and that
    # report is late.
    "a killed process is heard before others go on though news of its host are late": """
        0 hosts a:1 b:1; 6 late b 1.2; 6.4 kill a behind; 6.4 stop b""",
    # The answer with its rank was lost with the link. The launcher had forgotten the process, and never answered again.
    "a member that was given up and comes back asking is not taken for one that trains": """
        0 hosts a:2 b:2; 3.2 kill a; 3.2 cut b; 4.3 cut a""",
    "a loss is told by the next launcher if the one that saw it ended before the first step": """
        0 hosts a:1 b:1; 1.15 late b 1.2; 3.45 stop a; 10.75 agent a; 10.75 crash b; 13.05 launcher 1.5""",
    # The sender had died, so the transfer counted as failed. The launcher never learned what the receiver held.
    "what a transfer has left is known though its answer came too late": """
        0 hosts a:1 b:1; 4 block b; 8.99 late b 0.1; 9 kill a; 9 hosts b:1; 9.65 agent a; 9.65 hosts b:1 c:1
        30 alone""",
    "what a transfer has left is known to the launcher that was started meanwhile": """
        0 hosts a:1 b:1 d:1; 4 block b; 4 block d; 9 transfer 3; 9 kill a; 9 hosts b:1 d:1; 9.95 launcher 0.5
        9.95 cut d; 12.95 agent a; 12.95 hosts b:1 c:1 d:1""",
    # Their memory was given back, with the newest commit in it, because training had begun on a host that came late.
    "a load that nobody waits for any more takes nothing along": """
        0 store 2; 0 hosts a:1 b:1 c:1; 14 cut c; 14 transfer 6; 17.5 kill b; 18.5 clear c; 19.4 kill a
        19.4 launcher 0.5; 28.5 back c; 40 well""",
    # The only holder was told to end during a transfer, because storage had a checkpoint as new. It was the holder's
    # own storage.
    "a checkpoint on a disk of ones own is nobody elses": """
        0 store 2; 0 disk; 0 hosts a:1 b:1; 4 kill b; 4.1 slow b 6; 9.15 kill a; 9.15 hosts b:1""",
    # The next launcher knew only the lost commit, and did not wait for the one that still existed.
    "what a host holds is noted beside what its last agent held": """
        0 wait 30; 0 hosts a:1 b:1; 4 block b; 8.9 slow a 10; 9 agent a; 9.1 hosts a:1; 16 cut a
        16 launcher 0.5; 16 hosts c:1; 34 back a; 40 alone""",
    "a holder stays as long as its commit is being sent": """
        0 hosts a:1 b:1; 3 kill b; 3.5 slow b 6; 3.5 transfer 8; 9 kill a; 9.5 hosts b:1; 12 alone""",
    # Its newest commit was reported when the others had their ranks. Then the last of those was lost, too.
    "who holds more than the world that trains stays until that has caught up": """
        0 hosts a:1 b:1; 2.8 kill a ahead; 2.8 drop a; 2.8 hosts b:1 d:1; 3.41 agent b""",
    # The job ended during a transfer, by --elastic-timeout (120 s here).
    "a transfer may take longer than hosts are waited for": """
        0 hosts a:1 b:1; 4 block b; 5 transfer 130; 9 kill a; 9 block a; 9.5 clear b; 145 well""",
    # B's agent was cut off before its first heartbeat with a commit. The launcher did not know that B held one, and did
    # not wait.
    "what a world has agreed on is known of each member at once": """
        0 wait 20; 0 hosts a:1 b:1; 12 agent b; 16.7 cut b; 16.7 agent a""",
    # The commit from which B's process continued counted as one of step 0, so its loss was reported as 0 steps.
    "a beat of before the first commit takes back nothing that was said since": """
        0 hosts a:1 b:1; 2.6 hosts a:1; 2.6 agent a; 2.6 hosts a:1 b:1; 4.9 agent b""",
    # The start of an agent had found it alive. The launcher did not check again as long as the others trained.
    "an agent that ends before it has come to the next launcher is followed by another": """
        0 hosts a:1 c:1; 10.81 kill a; 13.11 launcher 5; 18.31 agent a""",
    # Its time was over while the launcher assumed that its own link was lost.
    "a holder that may end stays when nothing was decided meanwhile": """
        0 hosts a:1 c:1 d:1; 2.6 cut a; 3.8 agent d; 3.8 hosts a:1; 8.6 cut c; 8.6 hosts a:1 d:1""",
    "a holder that comes back is asked though its link had broken a transfer before": """
        0 hosts a:1 b:1; 4 stop a; 4 transfer 4; 4 sigterm b; 10.5 cut a; 14.6 well""",
    "a holder is asked again when the receiver is back": """
        0 hosts a:1 b:1; 2.8 kill a ahead; 3.1 cut b; 10.5 kill a; 11.4 well""",
    # The only host that trained had a notice. In the end both hosts were gone.
    "who may end stays while those who train are about to go": """
        0 hosts a:1 b:1; 5.5 kill b; 5.5 sigterm a; 6.6 hosts a:1; 7.5 hosts a:1""",
    # The launcher was stopped: its last message from the other host was old, and the link of that host was down.
    "who may end stays until those who hold as much are heard again": """
        0 hosts a:1 b:1; 5.5 standstill 9; 5.5 kill a; 6.7 cut b; 14.8 hosts b:1""",
    # A was called to a world with B, which finished training first. A waited for its rank for ever.
    "a newcomer whose world is not formed when training is done finishes by itself": """
        0 hosts a:1 b:1; 1.15 kill b; 7.25 block a 4; 7.25 well""",
    # The launcher was stopped meanwhile. Its wait for the agent began again at every look.
    "an agent that was found and ended before it connected is followed by another": """
        0 hosts a:1; 5.1 launcher 0.5; 5.7 standstill 9; 6 agent a""",
    # C had its rank, but its word that it had entered the world was late. So it counted as a newcomer, and the end of A
    # as that of all members: training was done.
    "who has a rank may train although its news are late": """
        0 hosts a:1 c:1; 1.15 launcher 0.5; 1.76 late c 1.2; 7.56 leave a""",
    # Training was done, and the launcher died before the job had ended. The next one begins it again.
    "a launcher that dies when all have left gives up nothing that is needed": """
        0 hosts a:1; 7.2 leave a; 7.22 launcher 1.5""",
    "ranks that leave while a launcher is started again are followed by others": """
        0 hosts c:1 d:1; 15.3 launcher 0; 15.3 leave 3""",
    # The launcher before had told A to leave, and knew of its end. B, which trained on, was lost with its agent.
    "who was told to leave by the launcher before has not ended training": """
        0 hosts a:1 b:2; 5.5 notice a; 7.8 agent b; 7.81 hosts a:1 -b; 10.11 launcher 0.5; 10.11 well""",
    # A was told to leave, and did so without a launcher. The next one knew of no other member: training was done.
    "who has left without a launcher was not the last one if other hosts are not heard of": """
        0 hosts a:1 b:1 c:1; 14.91 kill c; 14.92 notice a 5; 15.22 launcher 5; 16.22 cut b""",
    # The same, and the other one had failed.
    "who has left without a launcher was not the last one if another one has failed": """
        0 hosts b:2; 12.41 leave b/1; 12.41 crash b; 12.41 launcher 0""",
    # B had the commit, of call 2, and not the result of call 1. A was told to end, and B began with call 1.
    "a commit is sent after the results of the calls before it": """
        0 calls 6; 0 hosts a:1; 5 hosts b:1; 5 kill a""",
    # No fault of the driver: the oracle asked the launcher that was started meanwhile why there is one member more.
    "a world in which a blocked holder hands over may have a launcher that did not plan it": """
        0 most 2; 0 hosts a:2 b:2; 4.9 block a 4; 5 launcher 0""",
    # D had its rank from the launcher before, and stood still. It is a spare of the next one, where it woke, trained
    # alone from the start, and was not told to leave.
    "a process that wakes in a world of an earlier launcher is told to leave": """
        0 most 3; 0 hosts a:1 b:1 c:1 d:1; 0.5 agent b; 0.81 kill c; 1.91 agent a; 1.91 stop d; 3.01 launcher 0""",
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_what_once_broke_a_promise(text: str) -> None:
    failure = play(script(text))
    if failure is not None:
        pytest.fail(str(failure), pytrace=False)
