"""Flag beats environment beats file, and a slip in any of them is named."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import layered_argv


def sizes(text):
    raise UsageError(f"--sizes {text!r}: write 2,4")


def build_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("-np", "--num-proc", type=int)
    parser.add_argument("--hosts-file")
    parser.add_argument("--ssh-port", type=int)
    parser.add_argument("--cooldown-range", type=int, nargs=2)
    parser.add_argument("--hook", action="append")
    parser.add_argument("--wait", type=durations.time)
    parser.add_argument("--form", choices=["table", "json"])
    parser.add_argument("--sizes", type=sizes)
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
    return parser.parse_args(layered.argv)


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


@pytest.mark.parametrize(
    ("config", "environ", "name", "expected"),
    [
        ({"verbose": True}, {}, "verbose", True),
        ({"verbose": True}, {"VERBOSE": "0"}, "verbose", False),
        *(({}, {"VERBOSE": word}, "verbose", True) for word in ("1", "true", "True", "yes", "ON", " on ")),
        ({"no-standby": True}, {}, "standby", False),
        ({"no-standby": False}, {}, "standby", True),
        ({"tune": "yes"}, {}, "tune", True),
        ({"tune": "no"}, {}, "tune", False),
        ({"no-tune": "on"}, {}, "tune", False),
        ({"tune": False}, {"TUNE": "yes"}, "tune", True),
        ({"tune": True}, {"TUNE": "no"}, "tune", False),
        ({"tune": True}, {"NO_TUNE": "on"}, "tune", False),
        ({"hosts_file": "x"}, {}, "hosts_file", "x"),
        ({"np": 3}, {}, "num_proc", 3),
        ({}, {"NP": "3"}, "num_proc", 3),
        ({"num-proc": 2}, {"NP": "3"}, "num_proc", 3),
        ({"cooldown-range": [5, 60]}, {}, "cooldown_range", [5, 60]),
        ({}, {"COOLDOWN_RANGE": "5 60"}, "cooldown_range", [5, 60]),
        ({"hook": ["a", "b"]}, {}, "hook", ["a", "b"]),
        ({"hook": ["a", "b"]}, {"HOOK": "c"}, "hook", ["c"]),
        ({}, {"SSH_PORT": "2222"}, "ssh_port", 2222),  # which a Service could be called, too
    ],
)
def test_what_file_and_environment_say_becomes_an_option(config, environ, name, expected):
    given = {f"HVD_ELASTIC_{variable}": value for variable, value in environ.items()}
    assert getattr(parse("train.py", config=config, environ=given), name) == expected


FILE, VARIABLE = "job.yaml: ", "environment variable HVD_ELASTIC_"


@pytest.mark.parametrize(
    ("config", "environ", "problem"),
    [
        ({}, {"VERBOSE": "maybe"}, VARIABLE + "VERBOSE is a switch; .* not 'maybe'"),
        ({"hostsfile": 1}, {}, FILE + r"'hostsfile' is not an option; did you mean 'hosts-file'\?"),
        ({"num_procs": 1}, {}, FILE + r"'num_procs' is not an option; did you mean 'num-proc'\?"),
        ({"verbos": 1}, {}, FILE + r"'verbos' is not an option; did you mean 'verbose'\?"),
        ({}, {"HOST_FILE": "x"}, VARIABLE + r"HOST_FILE is not an option; did you mean HVD_ELASTIC_HOSTS_FILE\?"),
        ({}, {"SHH_PORT": "2222"}, VARIABLE + r"SHH_PORT is not an option; did you mean HVD_ELASTIC_SSH_PORT\?"),
        ({"help": "x"}, {}, FILE + "'help' is not an option"),
        ({"config": "x"}, {}, FILE + "'config' is not an option"),
        ({"command": "x"}, {}, FILE + "'command' is not an option"),
        ({"hosts-file": None}, {}, FILE + "'hosts-file' needs a value, not nothing"),
        ({"hosts-file": {"a": 1}}, {}, FILE + "'hosts-file' needs a value, not a table"),
        ({"hosts-file": ["a", "b"]}, {}, FILE + "'hosts-file' takes one value, not a list"),
        ({"wait": "soon"}, {}, FILE + "'wait' is 'soon'; write a time, such as 30s, 10m or 1h30m$"),
        ({}, {"WAIT": "soon"}, VARIABLE + "WAIT is 'soon'; write a time, such as 30s, 10m or 1h30m$"),
        ({}, {"WAIT": ""}, VARIABLE + "WAIT is ''; write a time"),
        ({}, {"WAIT": "99999999999h"}, VARIABLE + "WAIT: '99999999999h' is longer than 1000 days$"),
        ({"np": "two"}, {}, FILE + "'np' is 'two'; write a whole number, such as 2$"),
        ({}, {"FORM": "xml"}, VARIABLE + "FORM is 'xml'; write table or json$"),
        ({"sizes": "x"}, {}, FILE + "'sizes': 'x': write 2,4$"),
        ({"cooldown-range": 5}, {}, FILE + "'cooldown-range' needs 2 values, not 1$"),
        ({}, {"COOLDOWN_RANGE": "5 x"}, VARIABLE + "COOLDOWN_RANGE is 'x'; write a whole number"),
        ({"cooldown-range": "5 --verbose"}, {}, FILE + "'cooldown-range': .* would be read as an option"),
    ],
)
def test_what_is_no_option_or_value_is_named_with_its_place_and_neighbour(config, environ, problem):
    with pytest.raises(UsageError, match=problem):
        parse(config=config, environ={f"HVD_ELASTIC_{variable}": value for variable, value in environ.items()})


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


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_value_arrives_as_it_was_written_even_if_it_looks_like_an_option(value):
    assert parse("train.py", config={"hosts-file": value}).hosts_file == value
    assert parse("train.py", environ={"HVD_ELASTIC_HOSTS_FILE": value}).hosts_file == value


@pytest.mark.parametrize("flags", [["--hook", "d", "--hook", "e"], ["--hook=d", "--hook=e"]])
def test_flags_of_an_option_that_gathers_replace_what_the_weaker_layers_say(flags):
    given = {"config": {"hook": ["a", "b"]}, "environ": {"HVD_ELASTIC_HOOK": "c"}}
    assert parse(*flags, **given).hook == ["d", "e"]


def test_the_command_after_the_options_stays_the_command():
    args = parse("--verbose", "python", "train.py", "--num-proc", "9", config={"num-proc": 2})
    assert args.command == ["python", "train.py", "--num-proc", "9"]
    assert args.num_proc == 2


@pytest.mark.parametrize(
    ("argv", "message", "told"),
    [
        ([], "--wait is 0", "--wait is 0 (--wait comes from environment variable X_WAIT)"),
        (["--wait=0"], "--wait is 0", "--wait is 0"),
        ([], "-np is 0\nsee", "-np is 0 (-np comes from job.yaml: 'np')\nsee"),
        (["-np", "0"], "-np is 0", "-np is 0"),
        ([], "--wait-lines is 0", "--wait-lines is 0"),
    ],
)
def test_a_later_error_about_a_value_says_where_it_comes_from(argv, message, told):
    config, environ = {"np": 0}, {"X_WAIT": "0"}
    layered = layered_argv(build_parser(), argv, config=config, config_name="job.yaml", environ=environ, prefix="X_")
    assert str(layered.placed(UsageError(message))) == told
