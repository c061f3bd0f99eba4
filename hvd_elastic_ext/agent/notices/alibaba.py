"""Alibaba Cloud ECS.

- Spot instances: the end is announced 5 minutes ahead; poll every 5 s:
  https://www.alibabacloud.com/help/en/ecs/user-guide/query-the-interruption-events-of-preemptible-instances
- Metadata, and the hardened mode in which requests need a token:
  https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata/

Status 404 means that nothing is announced.
"""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.agent.notices.metadata import Announcement, Ask, NoResponse, Session, body_of, iso_time

SPOT: Final = "/latest/meta-data/instance/spot/termination-time"
NAME: Final = "/latest/meta-data/instance-id"


class Alibaba:
    """The metadata service of ECS. Requests carry a token if the service gives one."""

    name = "alibaba"
    every_s = 5.0

    def __init__(self) -> None:
        self._session = Session("X-aliyun-ecs-metadata-token", needed=False)
        self._met = False

    def look(self, ask: Ask) -> list[Announcement]:
        """The interruption of a spot instance. The first look also checks that the service is that of ECS."""
        if not self._met:  # any server may answer that there is no interruption
            request, answer = self._session.get(ask, NAME)
            if not body_of(request, answer).startswith("i-"):
                raise NoResponse(f"the answer to {NAME} is not the name of an ECS instance")
            self._met = True
        return self._session.read(ask, SPOT, interruption)


CLOUD: Final = Alibaba


def interruption(body: str, _: float) -> list[Announcement]:
    """Parse an answer such as ``2020-04-07T17:03:00Z``: when the instance ends."""
    return [Announcement("this spot instance is being taken back by Alibaba Cloud", iso_time(body))]
