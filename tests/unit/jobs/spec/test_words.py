"""arena's ways to write values are read as arena reads them."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.spec import words
from hvd_elastic_ext.jobs.spec.job import Toleration
from hvd_elastic_ext.jobs.spec.words import Command

SIZES = {"workers": "8", "gpus": "2", "minWorkers": "1", "maxWorkers": "128"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", Toleration()),
        ("spot", Toleration("spot")),
        ("spot:NoSchedule", Toleration("spot", "", "NoSchedule")),
        ("spot=yes:NoSchedule", Toleration("spot", "yes", "NoSchedule", "Equal")),
        ("spot=yes:NoSchedule,Equal", Toleration("spot", "yes", "NoSchedule", "Equal")),
        ("spot=yes:NoExecute,Exists", Toleration("spot", "", "NoExecute", "Exists")),
    ],
)
def test_a_toleration_is_read_as_arena_reads_it(text: str, expected: Toleration) -> None:
    assert words.tolerations([text]) == (expected,)


@pytest.mark.parametrize("text", ["", "=x", ":NoSchedule", "a=b:NoSchedule,Like"])
def test_any_other_toleration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--toleration"):
        words.tolerations([text])


def test_pairs_and_claims_are_split_at_the_first_sign() -> None:
    assert words.pairs("--env", ["A=b=c", "D="]) == {"A": "b=c", "D": ""}
    assert words.claims(["images:/data"]) == {"/data": "images"}
    for wrong in (lambda: words.pairs("--env", ["A"]), lambda: words.claims(["images"])):
        with pytest.raises(UsageError, match="write --"):
            wrong()


def test_two_claims_at_one_place_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^--data 'b:/x': a is already mounted there$"):
        words.claims(["a:/x", "b:/x"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["python", "train.py", "-x"], Command(("python", "train.py", "-x"), False)),
        (["python train.py -x 'a b'"], Command(("python", "train.py", "-x", "a b"), False)),
        (["cd /code && python train.py"], Command(("sh", "-c", "cd /code && python train.py"), False)),
        (["python t.py --say 'a  b; $c'"], Command(("python", "t.py", "--say", "a  b; $c"), False)),
        (["python t.py\n --say 'a  b' | tee x"], Command(("sh", "-c", "python t.py --say 'a  b' | tee x"), False)),
        (["A=1 python t.py"], Command(("python", "t.py"), False, {"A": "1"})),
        (["A=1", "B=x y", "python", "t.py", "C=2"], Command(("python", "t.py", "C=2"), False, {"A": "1", "B": "x y"})),
        (["A=$HOME python t.py"], Command(("sh", "-c", "A=$HOME python t.py"), False)),
        (["A=1 horovodrun -np 2 B=2 python t.py"], Command(("-np", "2", "B=2", "python", "t.py"), True, {"A": "1"})),
        (["python t.py *.csv"], Command(("sh", "-c", "python t.py *.csv"), False)),
        (["horovodrun -np 2 python t.py 'a;b'"], Command(("-np", "2", "python", "t.py", "a;b"), True)),
        (["exec python t.py"], Command(("sh", "-c", "exec python t.py"), False)),
        (["echo $HOME x"], Command(("sh", "-c", "echo $HOME x"), False)),
        (["hvd-elastic", "run", "--settle", "1", "t.py"], Command(("--settle", "1", "t.py"), True)),
        (
            [
                "horovodrun\n  -np $((${workers}*${gpus}))\n --min-np $((${minWorkers}*${gpus}))\n"
                "  --host-discovery-script /etc/edl/discover_hosts.sh\n python /t.py --n ${maxWorkers}\n"
            ],
            Command(
                (
                    *("-np", "16", "--min-np", "2", "--host-discovery-script", "/etc/edl/discover_hosts.sh"),
                    *("python", "/t.py", "--n", "128"),
                ),
                True,
            ),
        ),
    ],
)
def test_a_command_is_words_a_line_of_a_shell_or_a_launchers(given: list[str], expected: Command) -> None:
    assert words.command(given, SIZES) == expected


@pytest.mark.parametrize(
    "line",
    [
        "horovodrun -np 2 python t.py > /data/log",
        "cd /code && horovodrun -np 2 python t.py",
        "A=$B hvd-elastic run -np 2 python t.py",
        "hvd-elastic run -np 2 python t.py $HOME",
    ],
)
def test_a_launcher_within_a_line_of_a_shell_is_refused_since_each_process_would_start_a_job(line: str) -> None:
    with pytest.raises(UsageError, match="a whole job in each process"):
        words.command([line], SIZES)


def test_a_line_with_an_open_quote_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read: No closing quotation"):
        words.command(["python t.py 'x"], SIZES)


def test_a_line_that_needs_a_shell_has_the_one_that_is_asked_for() -> None:
    assert words.command(["python t.py | tee x"], SIZES, shell="bash").words == ("bash", "-c", "python t.py | tee x")
    assert words.command(["python t.py {a,b}"], SIZES, shell="bash").words == ("bash", "-c", "python t.py {a,b}")
    assert words.command(["python t.py {a,b}"], SIZES).words == ("python", "t.py", "{a,b}")
    assert words.command(["python t.py"], SIZES, shell="bash").words == ("python", "t.py")


def test_processes_of_a_node_are_slots() -> None:
    assert words.processes("", slots=3, gpus=2) == 3
    assert words.processes("4", slots=0, gpus=2) == words.processes("4", slots=4, gpus=2) == 4
    assert words.processes("gpu", slots=0, gpus=2) == words.processes("auto", slots=0, gpus=2) == 2
    for text, why in (
        ("cpu", "not known here; write a number"),
        ("auto", "not known here"),
        ("x", "x: write a number"),
    ):
        with pytest.raises(UsageError, match=why):
            words.processes(text, slots=0, gpus=0)
    with pytest.raises(UsageError, match="mean the same; give one"):
        words.processes("4", slots=2, gpus=0)


# --- arena's options


def test_a_switch_is_on_or_off_as_arena_writes_it() -> None:
    given = ["--gang=true", "--spot-instance=F", "--rdma=false", "--env=A=true", "--gpus=1", "--hostIPC=1"]
    assert words.switched(given) == ["--gang", "--env=A=true", "--gpus=1", "--hostIPC"]
    assert [words.is_off(word) for word in ("--rdma=false", "--rdma", "--rdma=true", "--gpus=0")] == [
        *(True, False, False, False)
    ]


@pytest.mark.parametrize("line", [["--queue"], ["--queue", "--gpus=1"]])
def test_a_queue_without_a_name_is_arenas_switch(line: list[str]) -> None:
    with pytest.raises(
        UsageError,
        match=r"--queue without a value is arena's, and is not accepted here: .*name a queue: --queue kueue/NAME",
    ):
        words.refuse(line)
    words.refuse(["--queue", "kueue/q"])
    words.refuse(["--queue=kueue/q"])
