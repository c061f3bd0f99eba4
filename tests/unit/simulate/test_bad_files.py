"""A file that no simulation can be made of gives one line at once: what, where, and what to do."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate import measured
from hvd_elastic_ext.simulate.command import DEMO, main
from hvd_elastic_ext.simulate.traces.rows import MAX_DAYS, MAX_HOSTS

LONG = "9" * 5000
HEAD = "time,host,event\n0,a,up\n"
HELIOS = "job_id,vc,gpu_num,start_time,end_time\n1,v,{gpus},{begun},2020-06-09 00:20:00\n2,v,8,2020-06-09,2020-06-10\n"
PHILLY = (
    '[{{"jobid": {jobid}, "attempts": [{{"start_time": "2017-10-03", "end_time": "2017-10-04", "detail": {detail}}}]}}]'
)


def refused(path, *more):
    """The one line with which a file is refused."""
    with pytest.raises(UsageError) as error:
        main([str(path), "--min-np", "1", *more])
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 500
    assert all(each.isprintable() for each in line)
    return line


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + f"1,{'x' * 200_000},up\n", "trace.csv:3: field larger than field limit"),
        (f"{'x' * 200_000},b\n1,2\n", "trace.csv:1: field larger than field limit"),
        (HELIOS.format(gpus="x" * 200_000, begun="2020-06-09"), "trace.csv:2: field larger than field limit"),
        (f"time,count\n0,{LONG}\n", "trace.csv:2: '0,999"),
        (HEAD.replace("event\n", "event,slots\n").replace("up", f"up,{LONG}"), "trace.csv:2: slots '9999"),
        (HELIOS.format(gpus=LONG, begun="2020-06-09"), "trace.csv:2: gpu_num is '999"),
        (PHILLY.format(jobid=1, detail=5), "trace.csv: job 1 (1): detail is 5; write a list"),
        (
            PHILLY.format(jobid=json.dumps("\x1b[2J"), detail='[{"ip": "m"}]'),
            "trace.csv: job 1 (\\x1b[2J): detail is {",
        ),
        ("[" * 100_000, "trace.csv: is not JSON"),
        ("{" * 100_000, "trace.csv: is not JSON"),
        (HEAD + "1e999,a,down\n", "trace.csv:3: time '1e999' is not a time"),
        (HEAD + "1e17h,a,down\n", f"trace.csv:3: lasts 4e+15 days; a trace has at most {MAX_DAYS}"),
        (HEAD + "400d,a,down\n", "trace.csv:3: lasts 400 days"),
        ("time,host,event,notice\n0,a,up,\n9,a,down,1e12\n", "trace.csv:3: lasts 11,574,074 days"),
        (f"time,count\n0,2\n{10**12},1\n", "trace.csv: lasts 11,574,074 days"),
        (
            HELIOS.format(gpus=10**12, begun="2020-06-09"),
            "trace.csv:2: gpu_num is '1000000000000'; write a whole number",
        ),
        (HELIOS.format(gpus=900_000, begun="2020-06-09"), "trace.csv: has 112,500 hosts at once; a trace has at most"),
        (HELIOS.format(gpus=8, begun="0001-01-01"), "trace.csv: lasts 737,"),
        (f"time,count\n0,2\n5,{MAX_HOSTS + 1}\n", "trace.csv:3: '5,10001' is not a time and a count"),
        (
            "time,host,event\n" + "".join(f"0,h{n},up\n" for n in range(50_000)),
            "trace.csv:10002: has 10,001 hosts with",
        ),
    ],
)
def test_a_bad_trace_is_one_line(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, text)
    assert refused("trace.csv").startswith(said)


def test_a_fifo_a_device_and_a_bomb_are_refused_at_once(tmp_path):
    fifo, bomb = tmp_path / "fifo", tmp_path / "bomb.csv.gz"
    os.mkfifo(fifo)
    bomb.write_bytes(gzip.compress(bytes(1 << 20)) * 520)
    assert refused(fifo).endswith("fifo: cannot be read: it is a pipe (FIFO), not a regular file; give a CSV file of "
                                  "time,host,event")  # fmt: skip
    assert "/dev/zero: cannot be read: it is a device" in refused("/dev/zero")
    assert "bomb.csv.gz: cannot be read: it has more than 512 MiB; give" in refused(bomb)
    for damaged in (b"x" * 99, gzip.compress(b"time,host,event\n" * 99)[:-12]):
        bomb.write_bytes(damaged)
        assert "bomb.csv.gz: cannot be read: it is not gzip, or is damaged; give" in refused(bomb)
    for path in (fifo, "/dev/zero"):
        with pytest.raises(UsageError, match=r"cannot be read: it is .*; give the journal of a job"):
            main(["--from-journal", str(path)])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("days=1e9", "--synthetic days=1e9: write days, 366 at most"),
        ("mtbf=1e999", "--synthetic mtbf=1e999: write a time"),
        (f"hosts={LONG}", "--synthetic hosts=999"),
        ("hosts=50000", "--synthetic hosts=50000: write a whole number from 1 to 10,000"),
        ("zones=1000000000", "--synthetic zones=1000000000: write a whole number from 1 to 10,000"),
        (
            "hosts=1000,mtbf=0.001,back=0.001",
            "--synthetic: makes 604,800,000,000 events; a trace has at most 500,000",
        ),
        ("hosts=9,zone_mtbf=0.001", "--synthetic: makes 604,806,048 events"),
        ("hosts=1000,slots=1000", "--synthetic: has 101 hosts with 101,000 slots at once"),
    ],
)
def test_a_synthetic_trace_without_an_end_is_one_line(words, said):
    with pytest.raises(UsageError) as error:
        main(["--synthetic", words, "--min-np", "1"])
    assert str(error.value).startswith(said)


def test_a_number_of_seeds_has_a_bound():
    for number in ("0", "1001", "1000000000"):
        with pytest.raises(UsageError, match=f"--seeds is {number}; give a number from 1 to 1,000"):
            main(["--seeds", number, "--min-np", "1"])


STRANGE = [
    float("inf"),
    float("nan"),
    -1,
    10**400,
    [],
    ["a"],
    {"a": "b"},
    {"a": float("inf")},
    {},
    None,
    "x" * 99,
    True,
    0,
]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: str(value)[:12])
def test_a_journal_with_strange_values_is_measured_by_what_it_has_besides(tmp_path, value):
    known, changed = measured.read(DEMO), []
    for number, line in enumerate(DEMO.read_text().splitlines()):
        entry = json.loads(line)
        names = [name for name in entry if name != "event"]
        if number % 4 == 3:
            entry[names[number // 4 % len(names)]] = value
        changed.append(json.dumps(entry))
    path = tmp_path / "journal.jsonl"
    path.write_text("\n".join(changed))
    found = measured.read(path)
    assert found.trace.ends <= known.trace.ends + 1.0
    assert found.goodput is None or 0.0 <= found.goodput <= 1.0
    assert found.times.step_s > 0.0
