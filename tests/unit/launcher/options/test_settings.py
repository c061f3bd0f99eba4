"""Options that cannot work are refused, with one clear line each."""

import logging
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import BadHosts, UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.agents.environment import MAX_ENVIRONMENT_BYTES, agent_options
from hvd_elastic_ext.launcher.checkpoints.schedule import AUTO, Cadence, Durability
from hvd_elastic_ext.launcher.cli import run_options
from hvd_elastic_ext.launcher.driver.options import JobOptions, ScaleOptions
from hvd_elastic_ext.launcher.job.finished_check import mark_of
from hvd_elastic_ext.launcher.membership.spares import SpareLimits
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from hvd_elastic_ext.launcher.options.program import job_name, joins_itself
from hvd_elastic_ext.launcher.options.settings import CloudNotices, RunSettings, Sources

COMMAND = ["python", "train.py", "--config", "model.yaml", "--np", "7"]


def test_the_end_of_training_is_that_of_a_command_and_of_the_scripts_in_it(tmp_path: Path) -> None:
    script, data = tmp_path / "train.py", tmp_path / "progress.json"
    command = ["python", str(script), str(data)]
    script.write_text("epochs = 4")
    data.write_text("0")
    mark = mark_of(command)
    data.write_text("4")
    assert mark_of(command) == mark
    assert mark_of([*command, "--epochs", "9"]) != mark
    script.write_text("epochs = 9")
    assert mark_of(command) != mark


def settings(**changes: Any) -> RunSettings:
    """Settings with these fields: of their own, of their options, or of the limits in those."""
    given = {"command": ("python", "train.py"), "sources": Sources(hosts=HostSet.of({"a": 2})), **changes}

    def taken(kind: type) -> dict[str, Any]:
        return {each.name: given.pop(each.name) for each in fields(kind) if each.name in given}

    limits = WorldLimits(**{"start": 2, **taken(WorldLimits)})
    options = JobOptions(limits, **taken(JobOptions))
    return RunSettings(options=options, **given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"command": ()}, "no command"),
        ({"start": 0}, "-np is 0"),
        ({"least": 0}, "--min-np is 0"),
        ({"least": 3}, "--min-np 3 is more than -np 2"),
        ({"most": 1}, "--max-np 1 is less than -np 2"),
        ({"start": 1, "least": 3, "most": 2}, "--min-np 3 is more than --max-np 2"),
        (
            {"least": 3, "all_slots_of": "the hosts given"},
            "--min-np 3 is more than the slots of the hosts given (2), with which a job starts without -np",
        ),
        ({"default_slots": 0}, "--slots-per-host is 0"),
        ({"default_slots": 1025}, "--slots-per-host is 1025; write a number from 1 to 1024"),
        ({"elastic_timeout_s": 0.0}, "--elastic-timeout is 0"),
        ({"reset_limit": -1}, "--reset-limit is -1"),
        ({"cooldown_s": (0.0, 10.0)}, "--blacklist-cooldown-range is 0 10"),
        ({"cooldown_s": (20.0, 10.0)}, "--blacklist-cooldown-range is 20 10"),
        ({"cooldown_s": (1.0, 3601.0)}, "at most 3600"),
        ({"ssh_port": 0}, "--ssh-port is 0"),
        ({"ssh_identity_file": "/nowhere/key"}, "no such file"),
        ({"job": "../x"}, "--job '../x'"),
        ({"engine": "slurm"}, "--engine slurm: choose one of horovod, torch, mpirun, torchrun"),
        ({"engine": "torchrun", "spares": SpareLimits(number=1)}, "--engine torchrun and --spares: each of its worlds"),
        ({"engine": "mpirun", "spares": SpareLimits(percent=1)}, "--engine mpirun and --spares: each of its worlds"),
        ({"engine": "torchrun", "adopt": True}, "--engine torchrun and --adopt: only Horovod's scripts"),
        ({"engine": "torch", "adopt": True}, "--engine torch and --adopt: only Horovod's scripts"),
        ({"engine": "mpirun", "replay": True}, "--engine mpirun and --replay: each of its worlds has new processes"),
        ({"engine": "mpirun", "rsh": "pod"}, "--engine mpirun starts its ranks over ssh"),
        ({"engine": "mpirun", "ssh_identity_file": "/a b"}, "Open MPI cannot take an option with a space"),
        ({"progress_timeout_s": 0.0}, "--progress-timeout is 0"),
        ({"restart_stalled": True}, "--restart-stalled needs --progress-timeout"),
        ({"below_min": "sleep"}, "--below-min sleep needs checkpoints"),
        ({"sleep_after_s": 0.0}, "--sleep-after is 0"),
        ({"max_wait_s": -1.0}, "--max-wait-time is -1"),
        ({"backoff_limit": -1}, "--job-backoff-limit is -1"),
        ({"settle_s": -1.0}, "--settle is -1"),
        ({"standby_timeout_s": 0.0}, "--standby-timeout is 0"),
        ({"wait_lines_s": 3.0}, "--wait-lines is 3, but must be 4 s at least"),
        ({"heartbeat_interval_s": 10.0}, "--heartbeat-interval 10 and --heartbeat-timeout 10: the interval must be"),
        ({"orphan_grace_s": -1.0}, "--orphan-grace is -1"),
        *(({"orphan_grace_s": s}, f"{s:g}; write a time from 0 to 1000000s") for s in (2e6, math.inf, math.nan)),
        (
            {"heartbeat_interval_s": 2e6, "heartbeat_timeout_s": 3e6},
            "is 2e+06; write a time of 1000000s at most",
        ),
        ({"wait_lines_s": math.nan}, "--wait-lines is nan, but must be 4 s at least"),
        ({"failure_budget": -1}, "--failure-budget is -1"),
        ({"allowed": (1, 2), "least": 3, "start": 4}, "--allowed-sizes 1,2: all are below"),
        ({"allowed": (3, 4), "start": 2, "most": 2}, "--allowed-sizes 3,4: all are above"),
        (
            {"scaling": ScaleOptions("efficiency", acts=True), "sources": Sources(hosts_file=Path("hosts"))},
            "--autoscale asks for hosts, and nothing bounds it; give --max-np",
        ),
        ({"scaling": ScaleOptions("efficiency")}, "--autoscale: the hosts are fixed"),
        ({"command": (), "job": "../x"}, "no command"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=r".") as refused:
        settings(**changes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_hosts_come_from_one_source() -> None:
    with pytest.raises(UsageError, match="2 sources"):
        Sources(hosts_file=Path("hosts"), script="./discover.sh")
    with pytest.raises(UsageError, match="0 sources"):
        Sources()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "a/train_digits.py", "--x"), "train_digits"),
        (("bash", "run.sh"), "run"),
        (("./worker",), "worker"),
        (("python", "-m", "pkg"), "pkg"),
        (("python3", "-u", "-m", "pkg.train", "--config", "x.py"), "pkg.train"),
        (("env", "A=1", "/usr/bin/python3.11", "-m", "pkg.train"), "pkg.train"),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "a/digits.py"), "digits"),
        (("bash", "-c", "cd /x && python -m pkg.train --lr 1"), "pkg.train"),
        (("bash", "-lc", "source venv/activate.sh; exec python3 -u a/train.py"), "train"),
        (("sh", "-c", "cd /x\n./worker --fast"), "worker"),
        (("bash", "-c", "cd /x"), "cd"),
        (("bash", "-c", "it's"), "it-s"),
        (("bash", "-c", ""), "job"),
        (("python", "-c", "print(1)"), "python-0bf46991"),
        (("python", "-m", "x" * 300), "x" * 100),
        (("..",), "job"),
    ],
)
def test_a_job_is_named_after_its_script(command: tuple[str, ...], name: str) -> None:
    assert job_name(command) == name


def parse(*argv: str, env: dict[str, str] | None = None) -> RunSettings:
    return run_options.parse([*argv, *COMMAND], env or {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--min-np 3 --max-np 2", "--min-np 3 is more than --max-np 2"),
        ("--min-num-proc 3 --max-num-proc 2", "--min-num-proc 3 is more than --max-num-proc 2"),
        ("--num-proc 2 --min-np=3", "--min-np 3 is more than --num-proc 2"),
        ("-np 2 --min-num-proc=3", "--min-num-proc 3 is more than -np 2"),
        ("--min-np 3", "--min-np 3 is more than the slots of localhost, the only host (1)"),
        ("-H a:2 --min-np 3", "--min-np 3 is more than the slots of the hosts given (2), with which a job starts with"),
    ],
)
def test_options_that_contradict_are_named_as_they_were_written(words: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(*words.split())
    assert str(refused.value).startswith(said)


def test_without_np_a_job_starts_with_all_slots_but_no_more_than_max_np() -> None:
    assert parse("-H", "a:4", "--max-np", "2").options.limits.start == 2
    assert parse("-H", "a:4", "--max-np", "8").options.limits.start == 4


def test_horovods_own_options_keep_their_names_and_meaning() -> None:
    parsed = parse(
        *["-np", "4", "--min-np", "2", "--max-num-proc", "8", "--slots-per-host", "2", "--reset-limit", "5"],
        *["--blacklist-cooldown-range", "20", "200", "--elastic-timeout", "60", "--network-interfaces", "eth0,eth1"],
        *["-p", "2222", "--fusion-threshold-mb", "32", "--gloo-timeout-seconds", "12"],
        *["--host-discovery-script", "./discover.sh", "--output-filename", "out", "--verbose"],
    )
    options = parsed.options
    assert (options.limits.start, options.limits.least, options.limits.most) == (4, 2, 8)
    assert (parsed.default_slots, options.reset_limit, options.cooldown_s) == (2, 5, (20, 200))
    assert (options.elastic_timeout_s, parsed.interfaces, parsed.ssh_port) == (60, ("eth0", "eth1"), 2222)
    assert parsed.sources == Sources(script="./discover.sh")
    assert (options.output, parsed.log_level) == (str(Path("out").absolute()), logging.DEBUG)
    assert parsed.env["HOROVOD_FUSION_THRESHOLD"] == str(32 * 1024 * 1024)
    assert parsed.env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "12"
    assert parsed.command == tuple(COMMAND)


@pytest.mark.parametrize(
    ("words", "setting", "meant"),
    [
        ("", "sources", Sources(hosts=HostSet.of({"localhost": 3}))),
        ("", "least", 3),
        ("", "below_min", "wait"),
        ("--below-min fail", "below_min", "fail"),
        ("", "commit_every", None),
        ("--commit-every auto", "commit_every", AUTO),
        ("--commit-every 10", "commit_every", Cadence(steps=10)),
        ("--allowed-sizes 4,2", "allowed", (2, 4)),
        ("--settle 7", "settle_s", 7.0),
        ("--standby-timeout 7", "standby_timeout_s", 7.0),
        ("--wait-lines 60", "wait_lines_s", 60.0),
        ("--heartbeat-interval 7", "heartbeat_interval_s", 7.0),
        ("--heartbeat-timeout 7", "heartbeat_timeout_s", 7.0),
        ("--progress-timeout 7", "progress_timeout_s", 7.0),
        ("--sleep-after 7", "sleep_after_s", 7.0),
        ("--max-wait-time 0", "max_wait_s", 0.0),
        ("--orphan-grace 0", "orphan_grace_s", 0.0),
        ("--commit-wait 7", "commit_wait_s", 7.0),
        ("--failure-budget 0", "failure_budget", 0),
        ("--job-backoff-limit 0", "backoff_limit", 0),
        ("--job-restart-policy OnFailure", "restart_policy", "OnFailure"),
        ("--engine torchrun", "engine", "torchrun"),
        ("--adopt", "adopt", True),
    ],
)
def test_an_option_is_a_setting(words: str, setting: str, meant: object) -> None:
    settings = parse("-np", "3", *words.split())
    holders = (settings, settings.options, settings.options.limits)
    assert [getattr(each, setting) for each in holders if hasattr(each, setting)] == [meant]


@pytest.mark.parametrize(
    ("words", "settle_s", "listed_s"),
    [
        ("", 3.0, 1.0),
        ("--settle 3", 3.0, None),
        ("--settle 12", 12.0, None),
        ("--engine torchrun", 3.0, None),
        ("--engine mpirun", 3.0, None),
    ],
)
def test_newcomers_that_are_all_ready_join_soon_unless_settle_is_given_or_a_change_restarts_all(
    words: str, settle_s: float, listed_s: float | None
) -> None:
    limits = parse("-np", "1", *words.split()).options.limits
    assert (limits.settle_s, limits.listed_s) == (settle_s, listed_s)


def test_a_job_that_has_slept_goes_on_with_the_processes_that_it_needs_at_least() -> None:
    options = parse("-H", "a:4", "--min-np", "2").options
    assert (options.limits.start, options.all_slots_of) == (4, "the hosts given")
    woken = options.woken_up()
    assert woken == replace(options, limits=replace(options.limits, start=2), woken=True, all_slots_of=None)


def test_a_job_for_all_slots_that_has_slept_goes_on_waiting_for_them() -> None:
    assert parse("-H", "a:4").options.woken_up().all_slots_of == "the hosts given"


@pytest.mark.parametrize("number", ["1025", "99999999999999999999"])
def test_more_processes_than_this_machine_alone_may_have_slots_are_refused(number: str) -> None:
    with pytest.raises(UsageError, match=f"-np is {number}, and this machine alone may have 1024 slots"):
        parse("-np", number)


def test_a_number_of_seconds_between_commits_is_refused() -> None:
    with pytest.raises(UsageError, match="--commit-every '10s': write auto, or a number of steps"):
        parse("-np", "1", "--commit-every", "10s")


def test_the_commands_own_options_are_left_to_it() -> None:
    assert parse("-np", "1", "--").command == tuple(COMMAND)
    assert parse("-np", "1", "--verbose").command == tuple(COMMAND)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--epochs 3", None),
        ("-p 3 -- --epochs", None),
        ("--checkpoint-every auto", "--checkpoint-every is an option of hvd-elastic run: put it before the script"),
        ("--adopt=1 --min-np 2", "--adopt, --min-np are options of hvd-elastic run: put them before the script"),
    ],
)
def test_options_of_the_launcher_that_stand_behind_the_script_are_known(words: str, said: str | None) -> None:
    settings = run_options.parse(["-np", "1", "--adopt", "python", "train.py", *words.split()], {})
    assert settings.options.misplaced == said


def test_agents_are_told_which_cloud_to_ask_and_where() -> None:
    env = {"HVD_ELASTIC_NOTICES_FROM": "auto", "HVD_ELASTIC_METADATA_URL": "http://127.0.0.1:8080/imds"}
    for words, given, source, url in (
        ((), {}, None, None),
        ((), env, "auto", "http://127.0.0.1:8080/imds"),
        (("--notices-from", "gcp"), env, "gcp", "http://127.0.0.1:8080/imds"),
    ):
        told = agent_options(parse("-np", "1", *words, env=given), given)
        assert (told["notices_from"], told["metadata_url"]) == (source, url)
    with pytest.raises(UsageError, match="'ec2' is not one of none, auto, gcp, azure, aws"):
        CloudNotices("ec2")


def test_agents_are_told_where_to_answer_prometheus_by_an_address_of_each_host() -> None:
    def told(*words: str) -> str | None:
        return agent_options(parse("-np", "1", *words), {})["metrics"]

    assert told() is None
    assert told("--agent-metrics", "9465") == "127.0.0.1:9465"
    assert told("--agent-metrics", "[::]:9465") == "[::]:9465"
    with pytest.raises(UsageError, match="--agent-metrics 'node:9465': write an address"):
        told("--agent-metrics", "node:9465")


def test_agents_are_told_the_notice_file_of_the_environment_and_whether_to_report_their_load() -> None:
    told = agent_options(parse("-np", "1"), {"HVD_ELASTIC_NOTICE_FILE": "/run/notice"})
    assert (told["notice_file"], told["observe"]) == ("/run/notice", False)
    more = agent_options(parse("-np", "1", "--dashboard", "0"), {"HVD_ELASTIC_NOTICE_FILE": ""})
    assert (more["notice_file"], more["observe"]) == (None, True)


def test_sources_of_signals_come_from_the_environment_too() -> None:
    words = ["--max-np", "3", "--hosts-file", "h", "--autoscale", "threshold:queue=5"]
    assert parse("-np", "1", *words, env={"HVD_ELASTIC_OBSERVE": "queue=file:/x"}).observe == ("queue=file:/x",)


def test_scalars_go_to_a_folder_of_this_machine() -> None:
    assert parse("-np", "1", "--tensorboard", "runs").tensorboard == Path("runs")
    with pytest.raises(UsageError, match="--tensorboard 's3://runs': that is not a folder"):
        parse("-np", "1", "--tensorboard", "s3://runs")


def test_a_hostfile_is_read_as_horovod_reads_it(tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("a slots=2\nb slots=4\n")
    assert parse("-np", "1", "--hostfile", str(hostfile)).sources == Sources(hosts=HostSet.of({"a": 2, "b": 4}))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-np", "2", "--mpi"], "cannot be elastic"),
        (["-np", "2", "--autotune"], "--autotune"),
        (["-np", "2", "--allowed-sizes", "2,²"], "--allowed-sizes '2,²': write whole numbers above 0"),
        (["-np", "2", "--hosts-file", "h", "-H", "a:1"], "2 sources"),
        (["-np", "2", "--discovery", "ftp://x"], "neither unix:///path nor http://host:port"),
        (["-np", "2", "--hostfile", "/nowhere/hostfile"], "/nowhere/hostfile"),
        (["-np", "2", "--metadata-url", "https://metadata"], "write it as http://host:port"),
        (["-np", "2", "--metadata-url", "http://me:word@metadata"], "--metadata-url"),
        (["-np", "2", "--metadata-url", "http://metadata/?a=b"], "--metadata-url"),
        (["-np", "2", "--config-file", "/nowhere/c.yaml"], "/nowhere/c.yaml"),
        (["-np", "2", "--config", "/nowhere/c.yaml"], "/nowhere/c.yaml"),
        (["-np", "2", "--scale-with", "file:x"], "--scale-with is for --autoscale POLICY"),
        (["-np", "2", "--observe", "a=file:x"], "--observe is for --autoscale POLICY"),
        (["-np", "2", "--autoscale", "eficiency"], "did you mean 'efficiency'?"),
        (["-np", "2", "--autoscale", "efficiency", "--observe", "a"], "--observe 'a'"),
    ],
)
def test_options_that_contradict_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(*argv)
    assert said in str(refused.value)


@pytest.mark.parametrize("hosts", ["a:0", "a:-1", "a:x", "a:1,a:1", "-oProxyCommand=x:1", "a b:1", "fe80::1:1", "ü:1"])
def test_hosts_on_the_command_line_are_checked(hosts: str) -> None:
    with pytest.raises(BadHosts):
        parse("-np", "1", f"--hosts={hosts}")


@pytest.mark.parametrize("name", ["HOROVOD_AUTOTUNE", "HOROVOD_DYNAMIC_PROCESS_SETS"])
def test_what_horovod_crashes_on_at_a_resize_is_refused_up_front(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}=1 cannot be used in an elastic job: .*horovod#\d+.*unset {name}"):
        parse("-np", "1", env={name: "1"})
    assert parse("-np", "1", env={name: "0"}).options.limits.start == 1


def test_an_environment_that_does_not_fit_into_one_line_to_an_agent_is_refused_up_front() -> None:
    with pytest.raises(UsageError, match=r"^environment and command take \d+ bytes .*make the variable BIG shorter"):
        parse("-np", "1", env={"BIG": "x" * MAX_ENVIRONMENT_BYTES})


def test_checkpoints_are_made_where_one_of_their_options_is_given(tmp_path: Path) -> None:
    words = ["-np", "1", "--state-dir", str(tmp_path)]
    assert run_options.parse([*words, *COMMAND], {}).options.durability is None
    by_folder = run_options.parse([*words, "--checkpoint-dir", str(tmp_path / "x"), *COMMAND], {}).options.durability
    mark = mark_of(COMMAND)
    assert by_folder == Durability(str(tmp_path / "x"), AUTO, 3, mark)
    by_pace = run_options.parse(
        [*words, "--checkpoint-every", "50", "--checkpoint-keep", "7", *COMMAND], {}
    ).options.durability
    assert by_pace == Durability(str(tmp_path / "checkpoints"), Cadence(steps=50), 7, mark)
    again = [*words, "--train-on", "--checkpoint-every", "50", *COMMAND, "--epochs", "9"]
    further = run_options.parse(again, {}).options.durability
    assert further is not None
    assert further.train_on
    assert further.mark != mark
    for url in ("s3://bucket/job", "abfs://container@account.dfs.core.windows.net/x"):
        by_url = run_options.parse([*words, "--checkpoint-dir", url, *COMMAND], {}).options.durability
        assert by_url is not None
        assert by_url.place == url


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--checkpoint-every", "5x"],
            r"write auto, a number of steps \(100\), a time with its unit \(90s, 10m\), or notice",
        ),
        (["--checkpoint-dir", "x", "--checkpoint-keep", "0"], "--checkpoint-keep is 0"),
        (["--checkpoint-dir", "s3://me:hunter2@bucket/x"], "a user or password"),
        (["--checkpoint-dir", "zip://a::https://me:hunter2@host/x"], "a user or password"),
        (["--checkpoint-dir", "sftp://me@host/x"], "a user or password"),
        (["--checkpoint-dir", "https://a.blob.core.windows.net/x?sp=r&sig=hunter2"], r"a secret \('sig'\)"),
    ],
)
def test_checkpoint_options_that_cannot_work_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        run_options.parse(["-np", "1", *words, *COMMAND], {})
    assert "hunter2" not in str(refusal.value)


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("num-proc: 2\nmax-np: 20\nelastic_timeout: 100\nhosts-file: from-file\n")
    env = {"HVD_ELASTIC_MAX_NP": "30", "HVD_ELASTIC_ELASTIC_TIMEOUT": "200", "HVD_ELASTIC_SAMPLE": "0"}
    parsed = parse("--config", str(config), "--elastic-timeout", "300", env=env)
    assert parsed.options.limits.start == 2
    assert parsed.options.limits.most == 30
    assert parsed.options.elastic_timeout_s == 300
    assert parsed.sources == Sources(hosts_file=Path("from-file"))


def test_toml_is_read_too_and_lists_and_switches_work(tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text('num-proc = 2\nblacklist-cooldown-range = [5, 50]\nverbose = true\njob = "x"\n')
    parsed = parse("--config", str(config))
    assert (parsed.options.cooldown_s, parsed.log_level, parsed.job) == ((5, 50), logging.DEBUG, "x")


@pytest.mark.parametrize(
    ("env", "text", "said"),
    [
        ({"HVD_ELASTIC_MIN_NPP": "2"}, "", "did you mean HVD_ELASTIC_MIN_NP?"),
        ({}, "reset-limt: 3\n", "did you mean 'reset-limit'?"),
        ({}, "- 1\n- 2\n", "one table"),
        ({}, "a: [1\n", "job.yaml"),
    ],
)
def test_an_unknown_key_names_its_neighbour(tmp_path: Path, env: dict[str, str], text: str, said: str) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(text)
    with pytest.raises(UsageError) as refused:
        parse("-np", "1", "--config", str(config), env=env)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("sample", ["x", "-1", "inf", "nan", ""])
def test_a_wrong_sample_interval_stops_the_job_here_and_not_in_each_worker(sample: str) -> None:
    with pytest.raises(UsageError, match="HVD_ELASTIC_SAMPLE"):
        parse("-np", "1", env={"HVD_ELASTIC_SAMPLE": sample})


@pytest.mark.parametrize(
    ("text", "command", "itself"),
    [
        ('import torch.distributed as dist\ndist.init_process_group("gloo")', "python {}", True),
        ("from torch.distributed import init_process_group\ninit_process_group()", "{} --epochs 3", True),
        ('dist.init_process_group("gloo")', "python -c pass", False),
        ("import hvd_elastic_ext.torch as elastic\ndist.init_process_group()", "python {}", False),
        ("def later():\n    from hvd_elastic_ext import torch\ninit_process_group()", "python {}", False),
        ("import helper\ndist.init_process_group()", "python {}", False),
        ("elastic.init()  # calls init_process_group()", "python {}", False),
        ("no Python init_process_group()", "python {}", False),
    ],
)
def test_a_script_that_joins_its_process_group_itself_is_known_by_its_calls_and_imports(
    tmp_path: Path, text: str, command: str, itself: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    (tmp_path / "helper.py").write_text("from hvd_elastic_ext.torch import TorchState")
    assert joins_itself(command.format(script).split()) == (str(script) if itself else None)
