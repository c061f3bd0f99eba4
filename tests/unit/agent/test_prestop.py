"""Which processes the preStop program tells that their pod ends."""

from hvd_elastic_ext.agent.prestop import agents
from hvd_elastic_ext.core.commands import agent_command

AGENT = agent_command("/opt/hvd/bin/python")


def test_agents_are_told_and_their_forks_and_everybody_else_are_not() -> None:
    commands = {
        1: (0, ["/usr/sbin/sshd", "-De"]),
        20: (1, ["sshd: trainer@notty"]),
        21: (20, AGENT),
        22: (21, AGENT),  # a supervisor
        23: (22, ["python", "train.py"]),
        24: (22, AGENT),  # what is about to become a training process
        40: (20, agent_command("python3.10", version=(3, 10))),
        50: (1, ["grep", "hvd_elastic_ext.agent"]),
    }
    assert agents(commands) == [21, 40]


def test_a_supervisor_that_has_lost_its_agent_is_told_itself() -> None:
    assert agents({1: (0, ["sshd"]), 22: (1, AGENT)}) == [22]
