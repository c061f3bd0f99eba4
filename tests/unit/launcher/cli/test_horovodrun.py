"""``horovodrun``'s options, with its names and meanings, whether or not Horovod is installed on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvd_elastic_ext.core.errors import BadHosts, UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.cli import horovodrun
from hvd_elastic_ext.launcher.cli.run_options import make_parser, parse, split

with_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod's own parser: make setup"
)
ELSEWHERE = ("-np", "2", "-H", "a:2")
BOTH = f"""
-np 2 --min-np 1 --max-np 3 -H a:2,b:2 --slots-per-host 2 --elastic-timeout 9 --reset-limit 4
--blacklist-cooldown-range 5 6 --network-interfaces eth0,eth1 --network-interface lo -prefix-timestamp
--output-filename out --verbose -p 22 -i {__file__}
"""
TUNED = """
--fusion-threshold-mb 32 --cycle-time-ms 2.5 --cache-capacity 9 --timeline-filename t.json --timeline-mark-cycles
--stall-check-warning-time-seconds 5 --stall-check-shutdown-time-seconds 6 --num-nccl-streams 2 --thread-affinity 1
--gloo-timeout-seconds 12 --log-level DEBUG --log-without-timestamp --no-stall-check --tcp --mpi-threads-disable
--hierarchical-allreduce --no-hierarchical-allgather --torus-allreduce
"""
FILE = """
controller: gloo
params: {fusion_threshold_mb: 64, cycle_time_ms: 3, cache_capacity: 5, hierarchical_allreduce: true}
autotune: {enabled: false, log_file: x}
timeline: {filename: t.json, mark_cycles: true}
stall_check: {enabled: false, warning_time_seconds: 7, shutdown_time_seconds: 8}
library_options: {mpi_threads_disable: true, num_nccl_streams: 3, thread_affinity: 2, gloo_timeout_seconds: 9}
logging: {level: INFO, with_timestamp: false}
"""


def ours(words: str) -> argparse.Namespace:
    args = make_parser().parse_args(words.split())
    horovodrun.complete(args)
    return args


class NoHorovod:
    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError("No module named 'horovod'", name=name)


@pytest.fixture
def no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoHorovod(), *sys.meta_path])


@with_horovod
def test_every_option_of_horovodrun_is_there_with_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner import launch

    made: list[argparse.ArgumentParser] = []

    class Parser(argparse.ArgumentParser):
        def __init__(self, **kwargs: object) -> None:
            super().__init__(**kwargs)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(launch, "argparse", SimpleNamespace(**{**vars(argparse), "ArgumentParser": Parser}))
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "1", "true"])
    launch.parse_args()
    own, known = make_parser()._option_string_actions, made[0]._option_string_actions
    assert set(known) <= set(own)
    for name, option in known.items():
        here = own[name]
        assert here.dest == option.dest, name
        assert here.default == option.default, name
        assert (here.nargs or 1 if here.nargs != 0 else 0) == (option.nargs or 1 if option.nargs != 0 else 0), name
        if option.nargs == 0:
            assert here.const in (option.const, True), name
        elif option.choices is not None:
            assert list(here.choices or ()) == list(option.choices), name
        elif name not in ("-h", "--help"):
            assert here.type is not None or option.type is None, name
            assert option.type in (None, int, float), name


@with_horovod
@pytest.mark.parametrize("words", [BOTH, TUNED, "", "--config-file {file}", "--config-file {file} --cycle-time-ms 9"])
def test_workers_learn_what_horovodrun_would_tell_them(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod.runner import launch
    from horovod.runner.common.util import config_parser

    (tmp_path / "c.yaml").write_text(FILE)
    words = words.format(file=tmp_path / "c.yaml")
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "2", *words.split(), "true"])
    known = launch.parse_args()
    args = ours(f"-np 2 {words}")
    expected: dict[str, str] = {}
    config_parser.set_env_from_args(expected, known)
    assert {
        name: float(value) if value[:1].isdigit() else value for name, value in horovodrun.tuning_env(args).items()
    } == {name: float(value) if value[:1].isdigit() else value for name, value in expected.items()}
    for name, value in vars(known).items():
        if name not in ("command", "run_func", "executable"):
            assert getattr(args, name) == value, name


def test_options_for_horovod_itself_are_taken_where_it_is_not_installed(no_horovod: None) -> None:
    parsed = parse([*ELSEWHERE, *TUNED.split(), "python", "t.py"], {})
    assert parsed.env["HOROVOD_LOG_LEVEL"] == "DEBUG"
    assert parsed.env["HOROVOD_CYCLE_TIME"] == "2.5"
    words = ["--log-level", "DEBUG", "-np", "2", "python", "t.py", "--log-level", "x"]
    assert split(words) == (tuple(words[:4]), tuple(words[4:]))


def test_a_job_elsewhere_needs_no_horovod_here_and_one_on_this_machine_does(no_horovod: None) -> None:
    assert parse([*ELSEWHERE, "python", "t.py"], {}).options.engine == "horovod"
    with pytest.raises(UsageError, match=r"^Horovod is not installed, and --engine horovod, the default, needs it"):
        parse(["-np", "1", "true"], {})
    with pytest.raises(UsageError, match=r"^--checkpoint-evry .*--checkpoint-every"):
        parse(["--checkpoint-evry", "5", "true"], {})
    assert parse(["--engine", "torchrun", "-np", "1", "true"], {}).options.engine == "torchrun"
    assert parse(["-np", "1", "true"], {"HVD_ELASTIC_ENGINE": "mpirun"}).options.engine == "mpirun"


@pytest.mark.parametrize("words", ["--check-build", "--version"])
def test_what_asks_about_horovod_here_is_answered_in_one_line_without_it(
    words: str, no_horovod: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(UsageError, match=rf"^{words}.* Horovod is not installed on this machine$"):
        parse([words, "-np", "1", "true"], {})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--autotune", "--autotune cannot be used in an elastic job"),
        ("--mpi", "--mpi and --jsrun cannot be elastic"),
        ("--cache-capacity -1", "--cache-capacity is -1; give 0 or more"),
        ("--log-level debug", "argument --log-level: invalid choice: 'debug'"),
        ("--gloo --mpi", "argument --mpi: not allowed with argument --gloo"),
        ("--config-file {}/none", "--config-file {}/none cannot be read"),
        ("--config-file {}/wrong.yaml", "--config-file {}/wrong.yaml: params: cycle_time_ms: 'soon' is not a number"),
        ("--config-file {}/list.yaml", "--config-file {}/list.yaml: params holds [1]; write a table"),
        ("--config-file {}/mpi.yaml", "--mpi and --jsrun cannot be elastic"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(words: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("params: {cycle_time_ms: soon}")
    (tmp_path / "list.yaml").write_text("params: [1]")
    (tmp_path / "mpi.yaml").write_text("controller: MPI")
    with pytest.raises(UsageError) as error:
        parse([*words.format(tmp_path).split(), "-np", "1", "true"], {})
    assert str(error.value).startswith(line.format(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "params: {fusion_treshold_mb: 64, cycle_time_ms: 3}",
            "unknown key 'params: fusion_treshold_mb' (did you mean 'params: fusion_threshold_mb'?) has no effect, as "
            "with horovodrun; correct or remove it ",
        ),
        (
            "np: 2\ncache_capacity: 4\nparam: {x: 1}\nlogging: {levl: INFO}",
            "unknown keys 'np', 'cache_capacity' (did you mean 'params: cache_capacity'?), 'param' (did you mean "
            "'params'?), 'logging: levl' (did you mean 'logging: level'?) have no effect, as with horovodrun; correct "
            "or remove them ",
        ),
        ("".join(f"k{number}: 1\n" for number in range(25)), "'k19' and 5 more have no effect"),
        ('"a\\n\\e[2Jb": 1', r"unknown key 'a \e[2Jb' has"),
    ],
)
def test_unknown_keys_of_horovods_file_are_named_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "horovod.yaml"
    path.write_text(text)
    unknown = parse(["-np", "1", "--config-file", str(path), "true"], {}).unknown_keys
    assert unknown is not None
    assert unknown.startswith(f"--config-file {path}: unknown key")
    assert said in unknown
    assert unknown.endswith("(options of hvd-elastic run are read from a file of --config)")
    assert unknown.isprintable()


def test_no_key_that_horovod_reads_is_unknown(tmp_path: Path) -> None:
    class Asked(dict[str, object]):
        """A table of a file, which notes the keys that are asked for."""

        def __init__(self, **tables: object) -> None:
            super().__init__(tables)
            self.keys_asked: set[str] = set()

        def get(self, key: str, default: object = None) -> object:
            self.keys_asked.add(key)
            return super().get(key, default)

        def __bool__(self) -> bool:
            return True

    stocks = pytest.importorskip("horovod.runner.common.util.config_parser")
    tables = {name: Asked() for name in horovodrun.FILE_KEYS if name != "controller"}
    whole = Asked(**tables)
    stocks.set_args_from_config(argparse.Namespace(use_gloo=False, use_mpi=False, no_stall_check=None), whole, set())
    assert whole.keys_asked == {*horovodrun.FILE_KEYS}
    assert {name: each.keys_asked for name, each in tables.items()} == {
        name: keys for name, keys in horovodrun.FILE_KEYS.items() if name != "controller"
    }
    (tmp_path / "horovod.yaml").write_text(FILE)
    assert parse(["-np", "1", "--config-file", f"{tmp_path}/horovod.yaml", "true"], {}).unknown_keys is None


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("# two hosts\n\na slots=2  # here\nb slots=1\n", {"a": 2, "b": 1}),
        ("# none\na\n", ":2: 'a' has no slots; write 'a slots=N', N being how many processes it runs"),
        ("a slots=1\na slots=1\n", ":2: host 'a' was listed in line 1 already; give each host once"),
        ("# a slots=2\n\n", " lists no host; write lines of the form 'name slots=N'"),
    ],
)
def test_a_hostfile_is_read_or_refused_with_file_line_and_remedy(text: str, hosts: object, tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text(text)
    if isinstance(hosts, dict):
        assert parse(["-np", "1", "--hostfile", str(path), "true"], {}).sources.hosts == HostSet.of(hosts)
        return
    with pytest.raises((UsageError, BadHosts)) as error:
        parse(["-np", "1", "--hostfile", str(path), "true"], {})
    assert str(error.value) == f"--hostfile {path}{hosts}"
