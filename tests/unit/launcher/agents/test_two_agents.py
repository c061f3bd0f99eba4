"""Two living agents of one name: a recreated pod whose old pod still runs, or two machines with one name."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver import events
from hvd_elastic_ext.launcher.driver.events import AgentJoined, AgentLost
from tests.unit.launcher.simulated_cluster import Cluster
from tests.unit.launcher.small_agents import Scene, hello
from tests.unit.launcher.small_agents import made as made  # a fixture


async def test_the_one_that_came_last_stays_and_the_other_is_ended_with_all_it_runs(made: Scene) -> None:
    await made.joined(agent="old")
    newer = await made.joined(agent="new")
    back = await made.agent()
    back.say(hello(agent="old", seats={"0": {"life": 1, "state": "running"}, "3": {"life": 2, "state": "rest"}}))
    orders = await back.hear(4)
    assert orders[0]["do"] == "welcome"  # an agent obeys only a launcher that has welcomed it
    assert orders[1:] == [{"do": "kill", "slot": 0}, {"do": "kill", "slot": 3}, {"do": "finish"}]
    assert await back.is_hung_up_on()
    assert made.control.refused == {"its host has a newer agent": 1}
    assert [type(event) for event in made.events] == [AgentJoined, AgentLost, AgentJoined]
    assert made.control.send("h1", {"do": "finish"})
    assert (await newer.hear(1))[0]["do"] == "finish"


async def test_the_newest_may_come_back_as_often_as_it_likes(made: Scene) -> None:
    await made.joined(agent="old")
    await made.joined(agent="new")
    await made.joined(agent="new")
    await made.joined(agent="newer")
    assert not made.control.refused


async def test_an_agent_that_was_lost_before_the_next_one_came_is_as_old(made: Scene) -> None:
    made.control.drop("h1", "there is none yet")
    await made.joined(agent="old")
    made.control.drop("h1", "it was silent")
    await made.until(lambda: made.events[-1] == AgentLost("h1", "it was silent"))
    await made.joined(agent="new")
    back = await made.agent()
    back.say(hello(agent="old"))
    assert [order["do"] for order in await back.hear(2)] == ["welcome", "finish"]


async def test_agents_of_other_hosts_are_others(made: Scene) -> None:
    for host in ("h1", "h2"):
        await made.joined(host, agent="the same id")
    await made.joined("h1", agent="another")
    await made.joined("h2", agent="the same id")
    assert not made.control.refused


def test_what_the_older_one_ran_counts_as_ended_and_the_seats_are_filled_anew() -> None:
    cluster = Cluster()
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(1.0)
    cluster.agents["b"].processes.clear()  # another machine with the same name has replaced it
    cluster.driver.tell(events.AgentLost("b", "another agent has taken its place"))
    cluster.driver.tell(events.AgentJoined("b", {"facts": {}, "seats": {}}))
    cluster.run(0.2)
    assert [(event["host"], event["cause"]) for event in cluster.events("exited")] == [("b", "crashed")]
    cluster.run(1.0)
    assert cluster.driver.job.generation == 2
