"""The reflector on an API server: over the real client, real sockets and every fault that server has."""

from __future__ import annotations

import json
import threading
import time

import pytest

from discover.watch.cluster import Timeouts
from hvd_elastic_ext.io.kube.access import Access
from tests.contract.discover.followed_server import HurriedClock, eventually, followed, rechecked
from tests.support.kube import bodies

FAST = 25.0
"""How much faster than the machine's the clock runs where minutes have to pass."""


def put(server, *names: str, **more) -> None:
    for name in names:
        server.put("pods", bodies.pod(name, **more))


@pytest.fixture
def two(kube):
    put(kube, "a", "b")
    return kube


def test_pods_are_listed_in_pages_and_then_watched(kube, tmp_path):
    """R1, R4"""
    put(kube, *(f"p{number}" for number in range(502)))
    put(kube, "other", labels={"job": "another"})
    with followed(kube, tmp_path) as pods:
        eventually(lambda: len(pods.names) == 502, "all pods")
        pods.watches()
        put(kube, "p502")
        eventually(lambda: len(pods.names) == 503, "one more pod")
        kube.remove("pods", "p0")
        eventually(lambda: len(pods.names) == 502, "one less pod")
    lists, (watch,) = kube.counts.seen("list", "pods"), kube.counts.seen("watch", "pods")
    assert [each.query.get("limit") for each in lists] == ["500", "500"]
    assert "resourceVersion" not in lists[0].query
    assert watch.query["allowWatchBookmarks"].lower() == "true"
    assert 45 <= int(watch.query["timeoutSeconds"]) <= 60


@pytest.mark.parametrize("headers", [True, False], ids=["after the headers", "before the headers"])
def test_rule_07_a_silent_server_is_left_and_watched_again_from_where_it_fell_silent(two, tmp_path, headers):
    plan = two.faults.on("watch", "pods", times=1).hang(headers=headers)
    with followed(two, tmp_path, clock=HurriedClock(FAST), timeouts=Timeouts(of_list=300.0, of_watch=0.5)) as pods:
        plan.wait()
        put(two, "c")
        pods.waits_for("a", "b", "c")
    assert pods.asked[:3] == ["PAGED", "WATCH", "WATCH"]
    assert pods.versions[1] == pods.versions[2]


def test_rule_07_a_silent_watch_is_found_within_75_seconds_and_not_before_a_live_server_ends_it():
    assert Timeouts().of_watch > 60.0
    assert Timeouts().of_watch + Timeouts().connect <= 75.0


def test_a_live_watch_outlives_its_read_timeout(two, tmp_path):
    with followed(two, tmp_path, timeouts=Timeouts(of_watch=2.0)) as pods:
        pods.watches()
        for number in range(9):  # the wait is the test: bookmarks come in less than the timeout, and all take longer
            time.sleep(0.3)
            put(two, f"other-{number}", labels={"job": "another"})
            two.watches("pods")[0].bookmark()
        assert pods.asked == ["PAGED", "WATCH"]


FAULTS = {
    "cut in the middle of an event": lambda plan: plan.cut(),
    "reset": lambda plan: plan.reset(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_rule_09_nothing_is_lost_whatever_comes_over_the_wire(two, tmp_path, fault):
    plan = fault(two.faults.on("watch", "pods", times=1))
    with followed(two, tmp_path, clock=HurriedClock(FAST)) as pods:
        plan.wait()
        two.change("pods", "a", {"metadata": {"labels": {"grün": "ü" * 20}}})
        two.remove("pods", "b")
        put(two, "c")
        pods.waits_for("a", "c")
        eventually(lambda: next(iter(pods.reflector.known()[0].values())).labels.get("grün"), "the change")


def test_a_list_whose_connection_breaks_off_is_not_told(kube, tmp_path):
    put(kube, *(f"p{number}" for number in range(40)))
    broken = kube.faults.on("list", "pods", times=1).cut()
    with followed(kube, tmp_path, clock=HurriedClock(FAST)) as pods:
        broken.wait()
        eventually(lambda: pods.names, "pods")
        assert len(pods.names) == 40


def test_rule_13_a_token_file_that_was_renewed_is_read_again_at_the_first_refusal(two, tmp_path):
    first, second = two.access.issue("a", "system:masters"), two.access.issue("b", "system:masters")
    token = tmp_path / "token"
    token.write_text(first)
    kubeconfig = two.kubeconfig(tmp_path / "kubeconfig", token_file=token)
    with followed(kubeconfig, tmp_path, clock=HurriedClock(FAST)) as pods:
        pods.waits_for("a", "b")
        pods.watches()
        token.write_text(second)
        two.access.revoke(first)
        two.drop()
        put(two, "c")
        pods.waits_for("a", "b", "c")
    assert two.counts.answers(401) == 1
    assert "RELIST" not in pods.asked


@pytest.fixture
def account(kube_tls, tmp_path, monkeypatch):
    """A pod's own credentials, as the kubelet puts them there."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(kube_tls.token)
    (folder / "namespace").write_text("default")
    (folder / "ca.crt").write_text(kube_tls.ca_file.read_text())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube_tls.port))
    put(kube_tls, "a")
    return folder


def test_rule_13_in_a_cluster_the_pods_own_account_is_used_and_its_token_may_be_empty_for_a_moment(
    kube_tls,
    account,
    tmp_path,
):
    (account / "token").write_text("")
    access = Access(account=account)
    assert access.namespace == "default"
    with followed(kube_tls, tmp_path, access=access, clock=HurriedClock(FAST)) as pods:
        eventually(lambda: "credentials" in pods.reflector.status.problem, "the complaint")
        (account / "token").write_text(kube_tls.token)
        pods.waits_for("a")


def test_rule_13_another_certificate_authority_is_trusted_once_its_file_is_there(kube_tls, account, tmp_path):
    with followed(kube_tls, tmp_path, access=Access(account=account), clock=HurriedClock(FAST)) as pods:
        pods.waits_for("a")
        pods.watches()
        kube_tls.rotate_ca()
        kube_tls.drop()
        eventually(lambda: "certificate" in pods.reflector.status.problem.lower(), "the refusal")
        (account / "ca.crt").write_text(kube_tls.ca_file.read_text())
        put(kube_tls, "b")
        pods.waits_for("a", "b")


def test_a_client_certificate_opens_the_door(kube_tls, tmp_path):
    put(kube_tls, "a")
    pair = kube_tls.authority.client("someone", "system:masters")
    kubeconfig = kube_tls.kubeconfig(tmp_path / "kubeconfig", client=pair)
    with followed(kubeconfig, tmp_path) as pods:
        pods.waits_for("a")
    assert {seen.user for seen in kube_tls.counts.seen("list", "pods")} == {"someone"}


def test_a_plugin_that_brings_a_token_is_run(two, tmp_path):
    plugin = tmp_path / "plugin"
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": two.token}}
    plugin.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(said)}\nEND\n")
    plugin.chmod(0o755)
    kubeconfig = two.kubeconfig(tmp_path / "kubeconfig")
    whole = json.loads(kubeconfig.read_text())
    command = {"apiVersion": said["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}
    whole["users"][0]["user"] = {"exec": command}
    kubeconfig.write_text(json.dumps(whole))
    with followed(kubeconfig, tmp_path) as pods:
        pods.waits_for("a", "b")


def test_a_watch_cache_that_stands_still_is_found_out_by_the_store_again_and_again(two, tmp_path):
    """Lists beside the watch come from there as well, and every new watch is as deaf as the one before."""
    with followed(two, tmp_path, clock=HurriedClock(4 * FAST)) as pods:
        pods.waits_for("a", "b")
        pods.watches()
        with two.stalls("pods"):
            put(two, "c")
            two.remove("pods", "a")
            with rechecked(pods, tmp_path):
                pods.waits_for("b", "c")
                put(two, "d")
                pods.waits_for("b", "c", "d")
        put(two, "e")
        pods.waits_for("b", "c", "d", "e")
    assert pods.counted.restarts[0] == "deaf"
    assert set(pods.asked) == {"PAGED", "WATCH"}


@pytest.mark.parametrize("hangs", ["watch", "list"])
def test_rule_28_a_request_that_is_not_answered_is_given_up_at_once(two, tmp_path, hangs):
    hung = two.faults.on(hangs, "pods").hang()
    with followed(two, tmp_path) as pods:
        hung.wait()
        begun = time.monotonic()
        pods.reflector.stop()
        assert time.monotonic() - begun < 2.0
        assert not any(thread.name == "watch-pods" for thread in threading.enumerate())
