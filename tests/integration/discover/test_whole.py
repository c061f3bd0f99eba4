"""Whoever reads, and whenever the daemon is killed, the hosts file is whole."""

import random
import sys
import time
from pathlib import Path

from discover.publish.files import HostsFile
from hvd_elastic_ext.core.publication import Publication, parse_hosts_text
from tests.support.processes import run_process
from tests.support.waiting import wait_until


def listing(number: int) -> dict[str, int]:
    return {f"n{number}-{index}": 1 for index in range(1 + number % 40)}


def text_of(number: int) -> str:
    return "".join(f"{name}:1\n" for name in listing(number))


REWRITE = """
import sys
from pathlib import Path
from discover.publish.files import HostsFile
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication
from tests.integration.discover.test_whole import listing

file = HostsFile(Path(sys.argv[1]))
file.own()
print("going", flush=True)
for number in range(1_000_000):
    file.publish(Publication("life", number, HostSet.of(listing(number))))
"""


OLD = "old:1\n"


def kill_somewhere(directory: Path, chance: random.Random) -> None:
    hosts = directory / "hosts"
    root = str(Path(__file__).parents[3])
    with run_process([sys.executable, "-c", REWRITE, hosts], cwd=root) as writer:
        writer.wait_for("going")
        wait_until(hosts.exists, what="the first file")
        time.sleep(chance.random() * 0.05)
        writer.kill()
        writer.wait()
    text = hosts.read_text()
    assert text == OLD or text == text_of(int(text[1 : text.index("-")]))
    after = HostsFile(hosts)
    after.publish(Publication("next", 1, parse_hosts_text(OLD, where="test")))
    after.close()
    assert {entry.name for entry in directory.iterdir()} == {"hosts", ".hosts.lock"}


def test_killed_at_any_moment_it_leaves_a_whole_file_and_the_next_start_no_litter(tmp_path):
    chance = random.Random(1)
    for _ in range(5):
        kill_somewhere(tmp_path, chance)
