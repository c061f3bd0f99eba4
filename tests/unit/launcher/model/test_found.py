"""Histories in which a driver once broke a promise. Each is as short as it could be made."""

from __future__ import annotations

import pytest

from tests.unit.launcher.model.history import script
from tests.unit.launcher.model.play import play


def _holds(text: str) -> None:
    failure = play(script(text))
    if failure is not None:
        pytest.fail(str(failure), pytrace=False)


def test_a_newcomer_does_not_begin_anew_while_those_who_trained_cool_down() -> None:
    """Both agents are there and hold the commit; the job began again at batch 0, and told of no loss."""
    _holds("""
        0 hosts a:1 b:1
        6 hosts a:1 b:1 c:1
        7.3 kill a
        7.31 kill b
    """)


def test_who_is_listed_no_more_stays_until_its_commits_were_handed_over() -> None:
    """B has an older commit. A, who went on alone, was told to end while its process booted again."""
    _holds("""
        0 hosts a:1 b:1
        3 kill b
        3.5 slow b 6
        9 kill a
        9.5 hosts b:1
    """)


def test_steps_that_went_with_the_last_agent_are_counted() -> None:
    """``steps_lost`` was null: nobody who could have told of a roll-back was left."""
    _holds("""
        0 hosts a:1
        6.2 agent a
    """)


def test_all_agents_killed_at_once_cost_steps_that_are_told() -> None:
    _holds("""
        0 hosts a:1 b:1
        6.6 agent b
        6.6 agent a
    """)


def test_a_host_that_is_blocked_by_hand_still_hands_over_what_it_holds() -> None:
    """The other agent was killed; that of the blocked host had all there was, and the job began anew."""
    _holds("""
        0 hosts a:1 b:1
        4.9 block b 4
        4.9 agent a
    """)


def test_whose_link_is_down_is_waited_for_when_all_others_are_gone() -> None:
    _holds("""
        0 hosts a:1 b:1
        2.6 agent a
        3.7 cut b
        5.5 kill b
        7.8 hosts a:1
    """)


def test_a_launcher_that_is_started_again_does_not_let_the_only_holder_go() -> None:
    _holds("""
        0 hosts a:1 b:1
        1.15 sigterm b
        3.46 kill a
        3.46 launcher 5
        6.86 hosts b:1
        11.56 agent a
    """)


def test_a_slot_is_chosen_by_what_it_holds_not_by_its_host() -> None:
    """The slot that was killed has an older commit than its neighbour, which went on without it."""
    _holds("""
        0 hosts b:2 d:1
        4.7 kill d
        5 kill b/1
        7.2 kill b
    """)


def test_a_commit_that_one_process_sealed_before_it_was_killed_is_the_newest() -> None:
    """Only the end of the process tells of it."""
    _holds("""
        0 hosts a:1 b:1
        6.15 kill a ahead
    """)


def test_a_holder_that_has_gone_on_since_it_last_beat_still_holds() -> None:
    """It was asked for the commit that it last told of, had newer ones by then, and was taken to hold nothing."""
    _holds("""
        0 hosts a:1 b:1
        4.3 sigterm a
        6.6 stop b
    """)


def test_a_process_stopped_alone_hands_over_what_its_end_tells_of() -> None:
    """The launcher kills it for its silence, and forms a world from what its beats had told by then."""
    _holds("""
        0 hosts a:1 b:1
        3.46 leave a
        5.76 stop b
    """)


def test_a_holder_that_is_stopped_and_listed_no_more_is_not_forgotten() -> None:
    _holds("""
        0 hosts a:1
        2.7 hosts b:1
        2.7 stop a
        7.4 garbage
    """)


def test_a_beat_that_is_older_than_what_an_agent_held_does_not_make_it_hold_less() -> None:
    """After a restart of the launcher the agent tells what memory holds, then beats, a second old, come after it."""
    _holds("""
        0 hosts b:1 c:1
        4.01 hosts b:1
        13.41 launcher 0
        14.51 agent b
    """)


def test_what_went_with_an_agent_is_known_to_the_next_launcher() -> None:
    """The agent dies, then the launcher: the next one said nothing of the loss."""
    _holds("""
        0 hosts a:1
        10.2 agent a
        11.4 launcher 0
    """)


def test_what_went_with_an_agent_while_there_was_no_launcher_is_counted() -> None:
    _holds("""
        0 hosts a:1 b:1
        2.9 notice a 5
        14.61 sigterm b
        16.91 launcher 1.5
    """)


def test_a_holder_whose_link_was_down_is_asked_for_what_it_holds_now() -> None:
    """It was asked for what it had told of before, two commits ago, and then taken to hold nothing at all."""
    _holds("""
        0 hosts a:1 b:1
        4 kill a
        4 hosts c:1
        5.2 cut b
        5.3 kill b
        5.3 well
    """)


def test_two_launchers_that_die_one_after_the_other_know_what_was_lost() -> None:
    _holds("""
        0 hosts a:1
        5.5 agent a
        5.5 launcher 5
        11.3 launcher 0.5
    """)


def test_a_checkpoint_is_loaded_again_when_the_memory_that_it_was_loaded_into_is_gone() -> None:
    """It "could not be loaded", nobody had tried to, and the job began at batch 0."""
    _holds("""
        0 store 2
        0 hosts a:1 b:1
        3.7 hosts a:1
        6.61 sigterm a
        9.61 sigterm a
    """)


def test_a_holder_is_not_given_up_because_the_receivers_link_broke() -> None:
    """One transfer failed when A's network did; B, who is blocked and holds all there is, was not asked any more."""
    _holds("""
        0 hosts a:1 b:1
        5.5 block b
        5.5 sigterm a
        8.1 cut a
    """)


def test_a_holder_that_is_back_is_asked_again() -> None:
    """A transfer had failed before its link was down; when it came back, its time was over at once."""
    _holds("""
        0 hosts a:1 b:1
        2.6 kill a
        2.6 hosts a:1 b:1 c:1
        3.7 kill b
        4.91 agent c
        5.01 transfer 4
        5.01 cut b
        7.31 stop a
        12.61 well
    """)


def test_a_launcher_that_finds_nobody_after_a_restart_does_not_end_a_job_that_has_trained() -> None:
    """The only host had no network for a while: "no process has come as far as training"."""
    _holds("""
        0 hosts a:1
        7.8 launcher 5
        10.1 cut a
        22.2 well
    """)


def test_a_launcher_that_is_started_again_loads_a_checkpoint_that_is_newer_than_what_it_finds() -> None:
    """It found a process at work, took that for enough, and went on with the older commit in its memory."""
    _holds("""
        0 store 2
        0 hosts a:1 b:1
        5.5 block b 4
        10.2 launcher 0
        10.2 cut a
    """)


def test_a_process_killed_for_its_silence_is_heard_before_others_go_on_without_it() -> None:
    """Ranks were dealt in the look that killed it. Its end told of a newer commit, and its agent was let go."""
    _holds("""
        0 hosts a:1 b:1
        4 hosts b:1
        4 hosts a:1 b:1
        4.01 launcher 1.5
        6.31 kill a
        6.41 stop b
        11.11 hosts a:1
        11.11 notice a
        11.12 kill a
    """)


def test_a_member_that_was_given_up_and_comes_back_asking_is_not_taken_for_one_that_trains() -> None:
    """The answer with its rank was lost with the link, and so was all that was known of it: nobody ever answered."""
    _holds("""
        0 hosts a:2 b:2
        3.2 kill a
        3.2 cut b
        4.3 cut a
    """)


def test_a_loss_is_told_by_the_next_launcher_if_the_one_that_saw_it_ended_before_the_first_step() -> None:
    _holds("""
        0 hosts a:1 b:1
        1.15 late b 1.2
        3.45 stop a
        10.75 agent a
        10.75 crash b
        13.05 launcher 1.5
    """)


def test_what_a_transfer_has_left_is_known_though_its_answer_came_too_late() -> None:
    """The sender had died: the transfer counted as failed, and what the receiver held was never heard of."""
    _holds("""
        0 hosts a:1 b:1
        4 block b
        8.99 late b 0.1
        9 kill a
        9 hosts b:1
        9.65 agent a
        9.65 hosts b:1 c:1
        30 alone
    """)


def test_what_a_transfer_has_left_is_known_to_the_launcher_that_was_started_meanwhile() -> None:
    _holds("""
        0 hosts a:1 b:1 d:1
        4 block b
        4 block d
        9 transfer 3
        9 kill a
        9 hosts b:1 d:1
        9.95 launcher 0.5
        9.95 cut d
        12.95 agent a
        12.95 hosts b:1 c:1 d:1
    """)


def test_a_load_that_nobody_waits_for_any_more_takes_nothing_along() -> None:
    """Their memory was given up, with the newest commit in it: training had begun on a host that came late."""
    _holds("""
        0 store 2
        0 hosts a:1 b:1 c:1
        14 cut c
        14 transfer 6
        17.5 kill b
        18.5 clear c
        19.4 kill a
        19.4 launcher 0.5
        28.5 back c
        40 well
    """)


def test_a_checkpoint_on_a_disk_of_ones_own_is_nobody_elses() -> None:
    """The only holder was told to end in mid-transfer, since storage had a checkpoint as new: its own storage."""
    _holds("""
        0 store 2
        0 disk
        0 hosts a:1 b:1
        4 kill b
        4.1 slow b 6
        9.15 kill a
        9.15 hosts b:1
    """)


def test_what_a_host_holds_is_noted_beside_what_its_last_agent_held() -> None:
    """The next launcher knew only of what was gone, and did not wait for what was not."""
    _holds("""
        0 wait 30
        0 hosts a:1 b:1
        4 block b
        8.9 slow a 10
        9 agent a
        9.1 hosts a:1
        16 cut a
        16 launcher 0.5
        16 hosts c:1
        34 back a
        40 alone
    """)


def test_a_holder_stays_as_long_as_its_commit_is_being_sent() -> None:
    _holds("""
        0 hosts a:1 b:1
        3 kill b
        3.5 slow b 6
        3.5 transfer 8
        9 kill a
        9.5 hosts b:1
        12 alone
    """)


def test_who_holds_more_than_the_world_that_trains_stays_until_that_has_caught_up() -> None:
    """Its newest commit was told when the others had their ranks; then the last of those was lost, too."""
    _holds("""
        0 hosts a:1 b:1
        2.8 kill a ahead
        2.8 drop a
        2.8 hosts b:1 d:1
        3.41 agent b
    """)


def test_a_transfer_may_take_longer_than_hosts_are_waited_for() -> None:
    """The job ended, by --elastic-timeout (120 s here), in the middle of it."""
    _holds("""
        0 hosts a:1 b:1
        4 block b
        5 transfer 130
        9 kill a
        9 block a
        9.5 clear b
        145 well
    """)


def test_what_a_world_has_agreed_on_is_known_of_each_member_at_once() -> None:
    """B's agent was cut off before its first beat with a commit: nobody knew that it held one, nor waited for it."""
    _holds("""
        0 wait 20
        0 hosts a:1 b:1
        12 agent b
        16.7 cut b
        16.7 agent a
    """)


def test_a_beat_of_before_the_first_commit_takes_back_nothing_that_was_said_since() -> None:
    """The commit that B's process had taken up counted as one of step 0: its loss was told as 0 steps."""
    _holds("""
        0 hosts a:1 b:1
        2.6 hosts a:1
        2.6 agent a
        2.6 hosts a:1 b:1
        4.9 agent b
    """)


def test_an_agent_that_ends_before_it_has_come_to_the_next_launcher_is_followed_by_another() -> None:
    """The start of an agent had found it alive; nobody looked again, as long as the others trained."""
    _holds("""
        0 hosts a:1 c:1
        10.81 kill a
        13.11 launcher 5
        18.31 agent a
    """)


def test_a_holder_that_may_end_stays_when_nothing_was_decided_meanwhile() -> None:
    """Its time was over while the launcher took its own link to be down."""
    _holds("""
        0 hosts a:1 c:1 d:1
        2.6 cut a
        3.8 agent d
        3.8 hosts a:1
        8.6 cut c
        8.6 hosts a:1 d:1
    """)


def test_a_holder_that_comes_back_is_asked_though_its_link_had_broken_a_transfer_before() -> None:
    _holds("""
        0 hosts a:1 b:1
        4 stop a
        4 transfer 4
        4 sigterm b
        10.5 cut a
        14.6 well
    """)


def test_a_holder_is_asked_again_when_the_receiver_is_back() -> None:
    _holds("""
        0 hosts a:1 b:1
        2.8 kill a ahead
        3.1 cut b
        10.5 kill a
        11.4 well
    """)


def test_who_may_end_stays_while_those_who_train_are_about_to_go() -> None:
    """The only one that trained had a notice; nothing was left of either."""
    _holds("""
        0 hosts a:1 b:1
        5.5 kill b
        5.5 sigterm a
        6.6 hosts a:1
        7.5 hosts a:1
    """)


def test_who_may_end_stays_until_those_who_hold_as_much_are_heard_again() -> None:
    """The launcher stood still: what it heard of the other one was old, and its link was down."""
    _holds("""
        0 hosts a:1 b:1
        5.5 standstill 9
        5.5 kill a
        6.7 cut b
        14.8 hosts b:1
    """)


def test_an_agent_that_was_found_and_ended_before_it_connected_is_followed_by_another() -> None:
    """The launcher stood still meanwhile. Its wait for the agent began again at every look."""
    _holds("""
        0 hosts a:1
        5.1 launcher 0.5
        5.7 standstill 9
        6 agent a
    """)
