"""The environment of processes, and hosts that are not fit."""

from __future__ import annotations

from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.core.secrets import OBSERVE_TOKEN
from hvd_elastic_ext.launcher.agents.environment import (
    MAX_ENVIRONMENT_BYTES,
    interface_of,
    job_env,
    seat_env,
    too_large,
    unfit,
    why_not_elastic,
)
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

SAME = {"torch": "2.13.0", "horovod": "0.28.1"}
FACTS = {
    "versions": SAME,
    "hostname": "h1",
    "addresses": ["10.0.0.1"],
    "interfaces": {"eth0": "10.0.0.1"},
    "via": "eth0",
}


def test_the_launchers_environment_goes_along_but_for_what_is_its_own() -> None:
    environ = {
        "HOME": "/home/me",
        "BASH_FUNC_x%%": "() { :; }",
        "HOROVOD_RANK": "3",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
        OBSERVE_TOKEN: "hush",
    }
    env = job_env(environ, {"HOROVOD_FUSION_THRESHOLD": "1"}, hook="/hook")
    assert env["HOME"] == "/home/me"
    assert env["HOROVOD_FUSION_THRESHOLD"] == "1"
    assert env["HOROVOD_ELASTIC"] == "1"
    assert not {"BASH_FUNC_x%%", "HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_PORT", OBSERVE_TOKEN} & env.keys()


def test_the_hook_goes_first_and_once() -> None:
    assert job_env({"PYTHONPATH": "/a:/hook:/b"}, {}, hook="/hook")["PYTHONPATH"] == "/hook:/a:/b"
    assert job_env({}, {}, hook="/hook")["PYTHONPATH"] == "/hook"


def test_a_seat_has_its_host_its_launcher_and_the_place_it_shows() -> None:
    assert seat_env(Seat("h1", 0), Place(2, 4, 0, 2, 1, 2), incarnation=4) == {
        "HOROVOD_HOSTNAME": "h1",
        "HVD_ELASTIC_PLAN": "2,4,0,2,1,2",
        "HVD_ELASTIC_INCARNATION": "4",
    }


def test_what_does_not_fit_into_one_line_to_an_agent_is_named_by_what_takes_most() -> None:
    assert too_large({"HOME": "/home/me", "BIG": "x" * (MAX_ENVIRONMENT_BYTES - 100)}, ["train"]) is None
    found = too_large({"HOME": "/home/me", "BIG": "hunter2" * MAX_ENVIRONMENT_BYTES, "LESS": "y" * 1000}, ["train"])
    assert found is not None
    assert "make the variable BIG shorter" in found
    assert "hunter2" not in found
    assert "make the command shorter" in (too_large({}, ["train", "x" * MAX_ENVIRONMENT_BYTES]) or "")


def test_the_interface_is_the_one_that_was_given_or_the_way_to_the_launcher() -> None:
    assert interface_of(FACTS, here=False, outward="lo", given=()) == "eth0"
    assert interface_of(FACTS, here=True, outward="wlan0", given=()) == "wlan0"
    assert interface_of({"interfaces": {"ib0": "10.1.0.1"}}, here=False, outward=None, given=("eth9", "ib0")) == "ib0"
    assert interface_of({}, here=False, outward="lo", given=("eth9",)) is None


def test_a_host_with_the_same_versions_may_work() -> None:
    assert unfit(FACTS, SAME, on_one_machine=False) is None


def test_another_version_is_named_with_the_remedy() -> None:
    found = unfit({**FACTS, "versions": {**SAME, "torch": "2.1.0"}}, SAME, on_one_machine=False)
    assert found == "it has torch 2.1.0, the launcher's machine has 2.13.0; install the same on every host"
    absent = unfit({**FACTS, "versions": {**SAME, "horovod": None}}, SAME, on_one_machine=False)
    assert absent is not None
    assert absent.startswith("it has no horovod, ")


def test_a_host_with_other_code_is_left_out_with_the_reason() -> None:
    def of(**code: str) -> str | None:
        return unfit({**FACTS, "code": code}, SAME, on_one_machine=False, code="a" * 64)

    assert of(folder="/code", sha256="a" * 64) is None
    assert of(folder="/code", sha256="b" * 64) == (
        "it has other code in /code (bbbbbbbb…, here aaaaaaaa…); bring the same to every host"
    )
    assert of(problem="train.py: no such file or directory") == (
        "it does not have the code of --code: train.py: no such file or directory; bring it there"
    )
    assert of() == "it does not have the code of --code: its agent does not say; bring it there"
    assert unfit({**FACTS, "code": {"sha256": "c"}}, SAME, on_one_machine=False) is None  # no checksum is required


def test_a_package_that_the_launcher_lacks_is_not_asked_for() -> None:
    assert unfit({**FACTS, "versions": {}}, {"torch": None}, on_one_machine=False) is None


def test_a_name_that_leads_to_loopback_matters_only_among_several_machines() -> None:
    there = {**FACTS, "addresses": ["127.0.1.1"]}
    assert unfit(there, SAME, on_one_machine=True) is None
    found = unfit(there, SAME, on_one_machine=False)
    assert found is not None
    assert "'h1' leads to 127.0.1.1" in found
    assert "/etc/hosts" in found


def test_a_name_that_does_not_resolve_ends_processes_anywhere() -> None:
    there = {**FACTS, "addresses": [], "resolving": "h1 does not resolve: Name or service not known"}
    for alone in (True, False):
        found = unfit(there, SAME, on_one_machine=alone)
        assert found is not None
        assert "'h1' does not resolve" in found
        assert "/etc/hosts" in found
    assert unfit(there, {"horovod": None}, on_one_machine=False) is None
    slow = {**there, "resolving": "the resolver did not answer within 2 s"}
    assert unfit(slow, SAME, on_one_machine=False) is None  # the name may resolve when it matters


def test_switches_that_no_elastic_job_survives_are_off_on_every_host() -> None:
    env = job_env({}, {}, hook="/hook")
    assert (env["HOROVOD_AUTOTUNE"], env["HOROVOD_DYNAMIC_PROCESS_SETS"]) == ("0", "0")
    assert why_not_elastic(env) is None
    assert why_not_elastic({"HOROVOD_AUTOTUNE": " 2x"}) is not None  # as Horovod reads it
    assert why_not_elastic({"HOROVOD_AUTOTUNE": "true"}) is None  # Horovod reads that as 0
