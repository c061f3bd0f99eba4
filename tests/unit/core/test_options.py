"""Flag beats environment beats file, and a slip in any of them is named."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.options import layered_argv


def build_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("-np", "--num-proc", type=int)
    parser.add_argument("--hosts-file")
    parser.add_argument("--ssh-port", type=int)
    parser.add_argument("--cooldown-range", type=int, nargs=2)
    parser.add_argument("--hook", action="append")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--standby", action=argparse.BooleanOptionalAction, default=True)
    # As Horovod pairs its switches: two actions, one destination.
    parser.add_argument("--tune", dest="tune", action="store_const", const=True)
    parser.add_argument("--no-tune", dest="tune", action="store_const", const=False)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def parse(*argv, config=None, environ=None, reserved=()):
    parser = build_parser()
    layered = layered_argv(
        parser,
        argv,
        config=config or {},
        config_name="job.yaml",
        environ=environ or {},
        prefix="HVD_ELASTIC_",
        reserved=reserved,
    )
    return parser.parse_args(layered)


numbers = st.none() | st.integers(0, 99)


@given(numbers, numbers, numbers)
def test_flag_beats_environment_beats_file(flag, env, file):
    args = parse(
        *([] if flag is None else ["--num-proc", str(flag)]),
        config={} if file is None else {"num-proc": file},
        environ={} if env is None else {"HVD_ELASTIC_NUM_PROC": str(env)},
    )
    assert args.num_proc == next((n for n in (flag, env, file) if n is not None), None)


SWITCH = {None: [], True: ["--standby"], False: ["--no-standby"]}


@given(*[st.sampled_from([None, True, False])] * 3)
def test_a_switch_with_an_opposite_follows_the_strongest_layer(flag, env, file):
    args = parse(
        *SWITCH[flag],
        config={} if file is None else {"standby": file},
        environ={} if env is None else {"HVD_ELASTIC_STANDBY": str(env).lower()},
    )
    assert args.standby == next((s for s in (flag, env, file) if s is not None), True)


def test_the_environment_turns_a_plain_switch_of_the_file_off_again():
    assert parse(config={"verbose": True}).verbose
    assert not parse(config={"verbose": True}, environ={"HVD_ELASTIC_VERBOSE": "0"}).verbose


@pytest.mark.parametrize(("key", "value", "expected"), [("no-standby", True, False), ("no-standby", False, True)])
def test_a_switch_may_be_given_by_its_opposite(key, value, expected):
    assert parse(config={key: value}).standby is expected


@pytest.mark.parametrize(
    ("key", "value", "expected"), [("tune", "yes", True), ("tune", "no", False), ("no-tune", "on", False)]
)
def test_a_pair_of_switches_for_one_thing_works_as_one(key, value, expected):
    assert parse(config={key: value}).tune is expected
    assert (
        parse(config={"tune": not expected}, environ={f"HVD_ELASTIC_{key.upper()}".replace("-", "_"): value}).tune
        is expected
    )


@pytest.mark.parametrize("word", ["1", "true", "True", "yes", "ON", " on "])
def test_words_for_on(word):
    assert parse(environ={"HVD_ELASTIC_VERBOSE": word}).verbose


def test_a_switch_that_is_neither_on_nor_off_is_named():
    with pytest.raises(UsageError, match=r"environment variable HVD_ELASTIC_VERBOSE is a switch; .* not 'maybe'"):
        parse(environ={"HVD_ELASTIC_VERBOSE": "maybe"})


@pytest.mark.parametrize(
    ("key", "neighbour"), [("hostsfile", "hosts-file"), ("num_procs", "num-proc"), ("verbos", "verbose")]
)
def test_an_unknown_key_of_the_file_names_its_neighbour(key, neighbour):
    with pytest.raises(UsageError, match=rf"job.yaml: '{key}' is not an option; did you mean '{neighbour}'\?"):
        parse(config={key: 1})


def test_an_unknown_environment_variable_names_its_neighbour():
    with pytest.raises(UsageError, match=r"HVD_ELASTIC_HOST_FILE is not an option; did you mean 'hosts-file'\?"):
        parse(environ={"HVD_ELASTIC_HOST_FILE": "x"})


@pytest.mark.parametrize("key", ["help", "config", "command"])
def test_what_makes_no_sense_in_a_file_is_unknown_there(key):
    with pytest.raises(UsageError, match=f"'{key}' is not an option"):
        parse(config={key: "x"})


def test_variables_of_others_and_reserved_ones_are_let_be():
    args = parse(environ={"PATH": "/bin", "HVD_ELASTIC": "x", "HVD_ELASTIC_SECRET": "y"}, reserved=["SECRET"])
    assert args.hosts_file is None


SERVICE = {
    "SERVICE_HOST": "10.96.0.7",
    "SERVICE_PORT": "8080",
    "SERVICE_PORT_HTTP_METRICS": "8080",
    "PORT": "tcp://10.96.0.7:8080",
    "PORT_8080_TCP": "tcp://10.96.0.7:8080",
    "PORT_8080_TCP_PROTO": "tcp",
    "PORT_8080_TCP_PORT": "8080",
    "PORT_8080_TCP_ADDR": "10.96.0.7",
    "PORT_53_UDP": "udp://[fd00::7]:53",
}
"""What Kubernetes puts into the environment of every pod for a Service, after the Service's name."""


@pytest.mark.parametrize("service", ["HVD_ELASTIC", "HVD_ELASTIC_METRICS", "HVD_ELASTIC_HOSTS_FILE", "HVD_ELASTIC_SSH"])
def test_a_service_of_our_name_in_the_namespace_is_no_option(service):
    links = {f"{service}_{name}": value for name, value in SERVICE.items()}
    args = parse(environ={**links, "HVD_ELASTIC_NUM_PROC": "3"})
    assert (args.num_proc, args.hosts_file, args.ssh_port) == (3, None, None)


def test_an_option_may_be_named_like_the_port_of_a_service():
    assert parse(environ={"HVD_ELASTIC_SSH_PORT": "2222"}).ssh_port == 2222
    with pytest.raises(UsageError, match=r"HVD_ELASTIC_SHH_PORT is not an option; did you mean 'ssh-port'\?"):
        parse(environ={"HVD_ELASTIC_SHH_PORT": "2222"})


def test_dashes_and_underscores_are_the_same_in_a_file():
    assert parse(config={"hosts_file": "x"}).hosts_file == "x"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_value_arrives_as_it_was_written_even_if_it_looks_like_an_option(value):
    assert parse("train.py", config={"hosts-file": value}).hosts_file == value
    assert parse("train.py", environ={"HVD_ELASTIC_HOSTS_FILE": value}).hosts_file == value


def test_options_with_two_values_take_a_list_or_two_words():
    assert parse("train.py", config={"cooldown-range": [5, 60]}).cooldown_range == [5, 60]
    assert parse("train.py", environ={"HVD_ELASTIC_COOLDOWN_RANGE": "5 60"}).cooldown_range == [5, 60]


def test_an_option_that_gathers_takes_a_list_and_the_environment_replaces_it_whole():
    assert parse(config={"hook": ["a", "b"]}).hook == ["a", "b"]
    assert parse(config={"hook": ["a", "b"]}, environ={"HVD_ELASTIC_HOOK": "c"}).hook == ["c"]


@pytest.mark.parametrize("flags", [["--hook", "d", "--hook", "e"], ["--hook=d", "--hook=e"]])
def test_flags_of_an_option_that_gathers_replace_what_the_weaker_layers_say(flags):
    given = {"config": {"hook": ["a", "b"]}, "environ": {"HVD_ELASTIC_HOOK": "c"}}
    assert parse(*flags, **given).hook == ["d", "e"]


BAD_VALUES = [
    ("hosts-file", None, "needs a value, not nothing"),
    ("hosts-file", {"a": 1}, "needs a value, not a table"),
    ("hosts-file", ["a", "b"], "takes one value, not a list"),
    ("cooldown-range", "5 --verbose", "would be read as an option"),
]


@pytest.mark.parametrize(("key", "value", "why"), BAD_VALUES)
def test_a_value_that_cannot_be_one_is_named_with_its_key(key, value, why):
    with pytest.raises(UsageError, match=f"job.yaml: '{key}'.*{why}"):
        parse(config={key: value})


def test_the_command_after_the_options_stays_the_command():
    args = parse("--verbose", "python", "train.py", "--num-proc", "9", config={"num-proc": 2})
    assert args.command == ["python", "train.py", "--num-proc", "9"]
    assert args.num_proc == 2
