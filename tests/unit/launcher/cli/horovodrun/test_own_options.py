"""``horovodrun``'s options without Horovod: the same names with the same meaning, or refused by name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli.horovodrun import horovod_options, own_options
from hvd_elastic_ext.launcher.cli.horovodrun.parser import ParserInput
from hvd_elastic_ext.launcher.cli.run_options import parse

ENGINE = ("--engine", "torchrun")
BOTH = f"""
-np 2 --min-np 1 --max-np 3 -H a:2,b:2 --slots-per-host 2 --elastic-timeout 9 --reset-limit 4
--blacklist-cooldown-range 5 6 --network-interfaces eth0,eth1 --network-interface lo -prefix-timestamp
--output-filename out --verbose -p 22 -i {__file__} --engine torchrun python s.py --lr 1
"""


def options_of(module: object) -> dict[str, argparse.Action]:
    """Return every option of ``run`` in this module by its name, except our own."""
    seen: list[argparse.ArgumentParser] = []
    words = ParserInput(["true"], "run", "", seen.append, lambda parser, argv: argv)
    module.parse(words)  # type: ignore[attr-defined]
    return dict(seen[0]._option_string_actions)


def values(option: argparse.Action) -> object:
    return 1 if option.nargs is None else option.nargs


def refused() -> set[str]:
    return {*own_options.SWITCHES.split(), *own_options.VALUES.split()}


class NoHorovod:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "horovod":
            raise ModuleNotFoundError("No module named 'horovod'", name=name)


@pytest.fixture
def no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "hvd_elastic_ext.launcher.cli.horovodrun.horovod_options")
    monkeypatch.delattr("hvd_elastic_ext.launcher.cli.horovodrun.horovod_options")
    monkeypatch.setattr(sys, "meta_path", [NoHorovod(), *sys.meta_path])


def test_every_option_of_horovodrun_is_there_or_refused_by_name() -> None:
    theirs, ours = options_of(horovod_options), options_of(own_options)
    assert set(theirs) == set(ours)
    assert refused() < set(ours)
    for name in set(theirs) - refused():
        for what in ("dest", "type", "default"):
            assert getattr(ours[name], what) == getattr(theirs[name], what), name
        assert values(ours[name]) == values(theirs[name]), name
    for name in refused() - {"-v", "--version"}:
        assert values(ours[name]) == values(theirs[name]), name


def test_both_read_a_command_line_alike(no_horovod: None, request: pytest.FixtureRequest) -> None:
    words = BOTH.split()
    without = parse(words, {})
    request.getfixturevalue("monkeypatch").undo()
    assert parse(words, {}) == without
    assert without.interfaces == ("eth0", "eth1", "lo")


def test_without_horovod_its_engine_is_refused_and_other_mistakes_come_first(no_horovod: None) -> None:
    with pytest.raises(UsageError, match=r"^Horovod is not installed, and --engine horovod, the default, needs it"):
        parse(["-np", "1", "true"], {})
    with pytest.raises(UsageError, match=r"--checkpoint-evry is no option; did you mean --checkpoint-every"):
        parse(["--checkpoint-evry", "5", "true"], {})
    assert parse([*ENGINE, "-np", "1", "true"], {}).engine == "torchrun"
    assert parse(["-np", "1", "true"], {"HVD_ELASTIC_ENGINE": "mpirun"}).engine == "mpirun"


@pytest.mark.parametrize("words", ["--autotune", "--cycle-time-ms 5", "--mpi", "--config-file x.yaml", "-v"])
def test_what_tunes_horovod_is_refused_by_name(words: str, no_horovod: None) -> None:
    with pytest.raises(UsageError, match=rf"^{words.split()[0]} is an option for Horovod itself"):
        parse([*ENGINE, *words.split(), "-np", "1", "true"], {})


@pytest.mark.parametrize(
    ("text", "hosts"), [("a slots=2\nb slots=1\n", "a:2,b:1"), ("a\n", None), ("a:2\n", None), ("\n", None)]
)
def test_a_hostfile_is_read_as_horovod_reads_it(text: str, hosts: str | None, tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text(text)
    for module in (own_options, horovod_options):
        if hosts is not None:
            assert module.read_hostfile(str(path)) == hosts
        else:
            with pytest.raises(UsageError, match="write lines of the form 'name slots=N'"):
                module.read_hostfile(str(path))
