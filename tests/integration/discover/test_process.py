"""The real command: what it does when things change, break and end."""

import json
import re
import signal
import socket
import stat
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until


def wait_published(place, text: str) -> None:
    wait_until(lambda: place.published() == text, what=repr(text), show=place.published)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_in_under_two_seconds_even_with_clients_waiting(place, number, code):
    place.watched.write_text("a:1\n")
    with place.serve() as daemon:
        wait_published(place, "a:1\n")
        daemon.wait_for("listening")
        waiting = threading.Thread(target=_wait_for_news, args=(place,))
        waiting.start()
        wait_until(lambda: place.get("/livez")[0] == 200, what="the socket")
        before = time.monotonic()
        daemon.send_signal(number)
        assert daemon.wait() == code
        assert time.monotonic() - before < 2.0
        waiting.join()
    assert place.published() == "a:1\n"
    assert not place.socket.exists()
    assert place.litter() == set()


def _wait_for_news(place) -> None:
    try:
        place.get("/hosts?after=1")
    except ConnectionError:
        """The server went away without an answer, as it should."""


def test_changes_are_published_and_pushed(place):
    place.watched.write_text("a:1\n")
    with place.serve():
        wait_published(place, "a:1\n")
        wait_until(lambda: place.socket.exists(), what="the socket")
        place.watched.write_text("b:2\na:1\n")
        status, body = place.get("/hosts?after=1")
        assert status == 200
        assert [host["name"] for host in json.loads(body)["hosts"]] == ["a", "b"]
        wait_published(place, "a:1\nb:2\n")


BAD = [
    "a:0\n",
    "a:-1\n",
    "a:x\n",
    "a:1\na:1\n",
    "a b:1\n",
    "-oProxyCommand=x:1\n",
    "ä:1\n",
    "::1:1\n",
    "x" * 300 + ":1\n",
]


def test_whatever_nonsense_the_file_holds_the_last_good_hosts_stay(place):
    place.watched.write_text("good:1\n")
    with place.serve() as daemon:
        daemon.wait_for("listening")
        wait_until(lambda: place.get("/readyz")[0] == 200, what="the first publication")
        for text in [*BAD, "nul\0:1\n"]:
            place.watched.write_text(text)
            wait_until(lambda: place.get("/readyz")[0] == 503, what=f"{text!r} to be refused")
            assert f"{place.watched}:" in place.get("/readyz")[1]
            assert place.published() == "good:1\n"
            place.watched.write_text("good:1\n")
            wait_until(lambda: place.get("/readyz")[0] == 200, what="to be well again")
        place.watched.write_bytes(b"\xff:1\n")
        wait_until(lambda: "not UTF-8" in place.get("/readyz")[1], what="bytes to be refused")
        place.watched.unlink()
        wait_until(lambda: "does not exist" in place.get("/readyz")[1], what="the loss to be noticed")
        assert place.published() == "good:1\n"
        assert "Traceback" not in daemon.output
        place.watched.write_text("good:1\nnew:1\n")
        wait_published(place, "good:1\nnew:1\n")
        wait_until(lambda: place.get("/readyz")[0] == 200, what="to be well again")


def test_started_on_a_bad_file_it_stays_and_leaves_what_stands_there_until_it_is_good(place):
    place.watched.write_text("a:zero\n")
    place.hosts.parent.mkdir()
    place.hosts.write_text("old:1\n")
    with place.serve() as daemon:
        daemon.wait_for(re.escape(f"{place.watched}:1: "))
        assert place.get("/startupz")[0] == 503
        assert place.get("/hosts")[0] == 503
        assert place.published() == "old:1\n"
        place.watched.write_text("new:1\nold:1\n")
        wait_published(place, "old:1\nnew:1\n")
        wait_until(lambda: place.get("/startupz")[0] == 200, what="startup")


def test_a_restart_with_nothing_new_leaves_the_file_untouched(place):
    place.watched.write_text("b:1\na:1\n")
    for _ in range(2):
        with place.serve() as daemon:
            daemon.wait_for("sequence=1")
            wait_until(lambda: place.get("/startupz")[0] == 200, what="startup")
            inode = place.hosts.stat().st_ino
            daemon.terminate()
            assert daemon.wait() == 0
    assert place.hosts.stat().st_ino == inode
    assert place.published() == "a:1\nb:1\n"


def test_each_life_has_a_source_name_of_its_own(place):
    place.watched.write_text("a:1\n")
    names = set()
    for _ in range(2):
        with place.serve() as daemon:
            daemon.wait_for("sequence=1")
            wait_until(lambda: place.get("/hosts")[0] == 200, what="the hosts")
            names.add(json.loads(place.get("/hosts")[1])["source"])
    assert len(names) == 2


def test_a_second_daemon_on_one_hosts_file_refuses(place):
    place.watched.write_text("a:1\n")
    with place.run() as first:
        wait_published(place, "a:1\n")
        with place.run() as second:
            assert second.wait() == 1
            assert f"{place.hosts}: another hvd-discover (process {first.pid}) already writes it" in second.stderr
            assert "Traceback" not in second.stderr
        assert first.returncode is None


def test_a_killed_daemon_frees_its_places_for_the_next(place):
    place.watched.write_text("a:1\n")
    with place.serve() as daemon:
        daemon.wait_for("listening")
        daemon.kill()
        daemon.wait()
    assert place.socket.exists()
    with place.serve() as daemon:
        daemon.wait_for("sequence=1")
        assert place.get("/livez") == (200, "alive\n")


def test_a_socket_somebody_else_serves_is_left_alone(place):
    place.watched.write_text("a:1\n")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place.socket))
        other.listen()
        with place.serve() as daemon:
            assert daemon.wait() == 1
            assert "another process already serves it" in daemon.stderr
    assert place.socket.exists()


def test_a_file_where_the_socket_should_be_is_left_alone(place):
    place.watched.write_text("a:1\n")
    place.socket.write_text("precious")
    with place.serve() as daemon:
        assert daemon.wait() == 1
        assert "that is no socket" in daemon.stderr
    assert place.socket.read_text() == "precious"


def test_the_socket_is_for_its_owner_only(place):
    place.watched.write_text("a:1\n")
    with place.serve() as daemon:
        daemon.wait_for("listening")
        assert stat.S_IMODE(place.socket.stat().st_mode) == 0o600


def _url(daemon: RunningProcess) -> str:
    return daemon.wait_for(r"listening: (http://\S+)").group(1)


def test_over_tcp_it_listens_on_loopback_only_unless_told_otherwise(place):
    place.watched.write_text("a:1\n")
    with place.run("--listen", ":0") as daemon:
        url = _url(daemon)
        assert url.startswith("http://127.0.0.1:")
        daemon.wait_for("sequence=1")
        wait_until(lambda: b"hvd_discover_hosts 1.0" in urllib.request.urlopen(f"{url}/metrics").read(), what="metrics")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/nowhere")
        refused.value.close()
        assert refused.value.code == 404


def test_it_serves_a_socket_file_and_a_port_at_once(place):
    place.watched.write_text("a:1\n")
    with place.serve("--listen", ":0") as daemon:
        url = _url(daemon)
        daemon.wait_for("sequence=1")
        # The log is a moment ahead of what is served: "after" waits for that.
        with urllib.request.urlopen(f"{url}/hosts?after=0") as over_tcp:
            assert over_tcp.read().decode() == place.get("/hosts?after=0")[1]
        daemon.terminate()
        assert daemon.wait() == 0
    assert not place.socket.exists()


def test_an_address_in_use_is_one_clear_line(place):
    place.watched.write_text("a:1\n")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with place.run("--listen", f"127.0.0.1:{other.getsockname()[1]}") as daemon:
            assert daemon.wait() == 1
            assert "address already in use; name another" in daemon.stderr
            assert "Traceback" not in daemon.stderr


def test_fifty_clients_wait_and_all_are_told(place):
    place.watched.write_text("a:1\n")
    with place.serve() as daemon:
        daemon.wait_for("sequence=1")
        bodies: list[str] = []
        clients = [threading.Thread(target=lambda: bodies.append(place.get("/hosts?after=1")[1])) for _ in range(50)]
        for client in clients:
            client.start()
        place.watched.write_text("b:1\n")
        for client in clients:
            client.join()
        assert {json.loads(body)["sequence"] for body in bodies} == {2}


def test_a_client_that_sends_nonsense_hurts_nobody(place):
    place.watched.write_text("a:1\n")
    with place.serve() as daemon:
        daemon.wait_for("sequence=1")
        for nonsense in (
            b"\x00\xff\r\n\r\n",
            b"GET\r\n\r\n",
            b"POST /hosts HTTP/1.1\r\n\r\n",
            b"GET /" + b"x" * 70_000,
            b"",
        ):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(place.socket))
                client.sendall(nonsense)
        assert place.get("/livez")[0] == 200
        assert "Traceback" not in daemon.output


def test_a_hosts_file_that_others_remove_or_edit_is_mended(place):
    place.watched.write_text("a:1\n")
    with place.run():
        wait_published(place, "a:1\n")
        place.hosts.unlink()
        wait_published(place, "a:1\n")
        place.hosts.write_text("evil:1\n")
        wait_published(place, "a:1\n")


def test_a_hangup_makes_it_look_again_and_does_not_end_it(place):
    place.watched.write_text("a:1\n")
    with place.serve() as daemon:
        daemon.wait_for("sequence=1")
        daemon.send_signal(signal.SIGHUP)
        place.watched.write_text("b:1\n")
        wait_published(place, "b:1\n")


def test_the_static_source_publishes_and_stays(place):
    static = ["--source", "static", "--hosts", "b:4,a:2"]
    argv = [sys.executable, "-m", "discover.cli", *static, "--hosts-file", str(place.hosts)]
    with run_process(argv) as daemon:
        wait_published(place, "a:2\nb:4\n")
        daemon.terminate()
        assert daemon.wait() == 0


def test_one_look_waits_for_a_writer_to_finish(place):
    with place.watched.open("w") as writer:
        writer.write("a:1\n")
        writer.flush()
        with place.run("--once") as look:
            threading.Timer(0.2, writer.close).start()
            assert look.wait() == 0, look.stderr
    assert place.published() == "a:1\n"
