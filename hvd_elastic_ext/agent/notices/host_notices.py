"""The notices of this host, whatever they come from, and what the launcher is told of them.

Files are looked at here. The cloud's service, if the job names one, is asked by a child (``watch.py``). The host goes
at the earliest of all notices; the launcher is told of each change, and again whenever it has connected.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.agent.descriptors import EventLoop
from hvd_elastic_ext.agent.notices.files import LOOK_S, Notice, NoticeFiles, soonest_of
from hvd_elastic_ext.agent.orders import Options
from hvd_elastic_ext.core.messages.slot_protocol import NOTICE_FILE

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.notices.watch import CloudWatch

METADATA_URL: Final = "HVD_ELASTIC_METADATA_URL"
"""Variable with the URL of the cloud's metadata service, if the job names none."""


class HostNotices:
    """The notices of this host. ``own``: the notice file beside the agent's socket, if there is one.

    ``connected`` says whether there is a launcher, ``tell`` sends it an event, and ``warn`` writes to standard error.
    """

    def __init__(
        self,
        loop: EventLoop,
        own: str | None,
        *,
        connected: Callable[[], bool],
        tell: Callable[..., None],
        warn: Callable[[str], None],
    ) -> None:
        self._loop, self._own = loop, own
        self._connected, self._tell, self._warn = connected, tell, warn
        self._named: str | None = None
        """The notice file that the job names."""
        self._files = self._notice_files()
        self._cloud: CloudWatch | None = None
        self._look_at = loop.now()
        self._going: Notice | None = None
        """The earliest notice."""
        self._ever = False
        """Whether there has been one. Until then there is nothing to withdraw."""

    def take(self, options: Options) -> None:
        """Use the sources that the job names: a file, and a cloud."""
        if options.notice_file != self._named:
            self._named = options.notice_file
            self._files = self._notice_files()
        self._ask_cloud(options.notices_from, options.metadata_url)

    @property
    def left_s(self) -> float | None:
        """Seconds until the host is gone; None if unknown, or if there is no notice."""
        return None if self._going is None or self._going.by is None else self._going.by - time.time()

    @property
    def going(self) -> dict[str, Any] | None:
        """The earliest notice, as the launcher gets it; None if there is none."""
        return None if self._going is None else {"reason": self._going.reason, "in_s": self.left_s}

    def due(self) -> float:
        """The loop's time at which ``tick`` is needed next."""
        again_at = None if self._cloud is None else self._cloud.due()
        return self._look_at if again_at is None else min(self._look_at, again_at)

    def tick(self) -> None:
        """Do what is due."""
        if self._loop.now() >= self._look_at:
            self.look()
        if self._cloud is not None:
            self._cloud.tick()

    def look(self) -> None:
        """Read the notices of files and cloud, and report a change."""
        self._look_at = self._loop.now() + LOOK_S
        notices = (self._files.look(time.time()), None if self._cloud is None else self._cloud.going)
        going = soonest_of([notice for notice in notices if notice is not None])
        if going != self._going:
            self._going, self._ever = going, True
            if self._connected():  # otherwise the next welcome triggers the report
                self._report()

    def tell_again(self) -> None:
        """Report the present notice to a launcher that has just connected."""
        if self._ever:
            self._report()

    def close(self) -> None:
        """Ask the cloud no more."""
        if self._cloud is not None:
            self._cloud.close()

    def _report(self) -> None:
        if (going := self.going) is None:
            self._tell("staying")
        else:
            self._tell("going", **going)

    def _notice_files(self) -> NoticeFiles:
        named = self._named or os.environ.get(NOTICE_FILE)
        return NoticeFiles([self._own] if self._own else [], [named] if named else [], warn=self._warn)

    def _ask_cloud(self, source: str | None, url: str | None) -> None:
        """Have the cloud that the job names asked, and no other."""
        wanted = None if source is None else (source, url or os.environ.get(METADATA_URL) or None)
        if self._cloud is not None and self._cloud.looks_at != wanted:
            self._cloud.close()
            self._cloud = None
        if self._cloud is None and wanted is not None:
            from hvd_elastic_ext.agent.notices.watch import CloudWatch

            self._cloud = CloudWatch(self._loop, *wanted, listener=self)

    # --- what the cloud's watch needs --------------------------------------------------------------

    def cloud_notice(self) -> None:
        """Combine the cloud's new notice with those of files, and report what has changed."""
        self.look()

    def cloud_advice(self, reason: str | None) -> None:
        """Report the advice ``reason`` to the launcher; None withdraws the last one."""
        self._tell("advised", reason=reason)

    def cloud_problem(self, source: str, problem: str | None) -> None:
        """Report the ``problem`` why ``source`` does not answer; None if it answers again."""
        self._tell("notices_unavailable", source=source, reason=problem)
