"""Lines that call arena: commands besides submit, and options before a command."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.jobs.cli.convert import converted

NONE = "# NO EQUAL: "
ARENAS = NONE + "it is about arena itself; leave it out: "


def lines(line: str) -> list[str]:
    """What a line becomes, without what says which command it was."""
    found = converted(f"{line}\n", "f.sh").splitlines()
    return [each for each in found if not each.startswith("# arena ") or " -> " not in each]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("arena attach q", ["hvd-elastic attach q"]),
        ("arena attach q -i q-worker-0 -c mpi", ["hvd-elastic attach q -i q-worker-0 -c mpi"]),
        ("arena attach q -- ls -l --queue", ["hvd-elastic attach q -- ls -l --queue"]),
        ("arena attach q ls /data", ["hvd-elastic attach q -- ls /data"]),
        ("arena attach q ls -i q-worker-0 /data", ["hvd-elastic attach -i q-worker-0 q -- ls /data"]),
        ("arena top job q", ["hvd-elastic top q"]),
        ("arena top job", ["hvd-elastic top"]),
        ("arena top -n team job q", ["hvd-elastic top -n team q"]),
        ("arena --loglevel debug get q", [ARENAS + "--loglevel debug", "hvd-elastic get q"]),
        (
            "arena --loglevel=debug --trace get q",
            [ARENAS + "--loglevel=debug", ARENAS + "--trace", "hvd-elastic get q"],
        ),
        ("arena -n team get q", ["hvd-elastic get -n team q"]),
        ("arena get q --config /k", ["# --config -> --kubeconfig", "hvd-elastic get q --kubeconfig /k"]),
        ("arena --config=/k ls", ["# --config -> --kubeconfig", "hvd-elastic list --kubeconfig=/k"]),
        ("arena log q -t 5 --since 5m", ["hvd-elastic logs q -t 5 --since 5m"]),
        ("arena logs q -i pod --timestamps", ["hvd-elastic logs q -i pod --timestamps"]),
        ("arena del a b", ["hvd-elastic delete a b"]),
        ("arena list --allNamespaces", ["# --allNamespaces -> --all-namespaces", "hvd-elastic list --all-namespaces"]),
        ("arena logs q | grep -v x", ["hvd-elastic logs q | grep -v x"]),
        ("arena get q > f --not-mine", ["hvd-elastic get q > f --not-mine"]),
        ("arena list; ls -T", ["hvd-elastic list; ls -T"]),
        (
            "arena submit -n team mpijob --name=q --image=x:1 --gang=true --rdma=false 'python t.py'",
            [
                "# --rdma=false left out: it is off",
                "hvd-elastic submit mpijob -n team --name=q --image=x:1 --gang=true 'python t.py'",
            ],
        ),
        (
            "arena submit mpijob --name=q --image=x:1 --retry 2 --running-timeout=1h --syncMode git 'python t.py'",
            [
                f"{NONE}name a folder, or git+https://HOST/REPOSITORY@REVISION, with --sync; the command starts among "
                "its files: --syncMode git",
                "hvd-elastic submit mpijob --name=q --image=x:1 --retry 2 --running-timeout=1h 'python t.py'",
            ],
        ),
    ],
)
def test_a_call_of_arena_means_the_same_afterwards(line: str, expected: list[str]) -> None:
    assert lines(line) == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("arena top node", "kubectl top node shows what nodes use"),
        ("arena prune -s 5m", "submit with --ttl-after-finished, and jobs that have ended go by themselves"),
        ("arena scalein etjob --name q", "hvd-elastic scale NAME N -n NAMESPACE sets the number of workers"),
        ("arena --loglevel debug serve list", "hvd-elastic has no such command or kind"),
        ("arena submit", "hvd-elastic has no such command or kind"),
    ],
)
def test_a_call_without_an_equal_stays_as_a_comment_with_what_to_do(line: str, why: str) -> None:
    assert lines(line) == [NONE + why, f"# {line}"]


def test_an_option_without_an_equal_says_what_has_it() -> None:
    assert lines("arena get q -e -g -T etjob") == [
        f"{NONE}hvd-elastic events NAME -n NAMESPACE shows them: -e",
        f"{NONE}hvd-elastic top NAME has the GPUs of each pod: -g",
        f"{NONE}a name is looked for among jobs of all kinds: -T etjob",
        "hvd-elastic get q",
    ]
