"""Chooses one writer among several daemons: the holder of a Lease writes, and the others wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from discover.kube.collection import Sender
from discover.publishing.file_lock import OwnedByOther
from discover.publishing.files import PublishFailed
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

API: Final = "coordination.k8s.io/v1"


LASTS: Final = 30.0
"""Seconds after which a Lease expires if its holder does not renew it."""

RENEW: Final = 10.0
"""Seconds between two renewals."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as it was read. ``version``: its resourceVersion. ``since``: when this daemon first saw that version
    (monotonic seconds). ``lasts``: its duration in seconds. ``changes``: how often it has changed its holder.
    ``acquired``: when the holder got it, as the API writes times.

    A Lease that has not changed for its duration has expired. So the clocks of two machines are never compared.
    """

    holder: str
    version: str
    lasts: float
    since: float
    changes: int = 0
    acquired: str = ""


class Lease:
    """The Lease ``name``. ``me``: this daemon's unique identity. ``of``: how messages name what the Lease protects.

    A daemon that was stopped for longer than the Lease lasts may still send one request as its holder. Therefore each
    write also names a resourceVersion.
    """

    def __init__(self, sender: Sender, *, namespace: str, name: str, me: str, of: str, clock: Clock) -> None:
        self._sender = sender
        self._namespace, self._name = namespace, name
        self._me = me
        self._of = of
        self._clock = clock
        self._known: LeaseRecord | None = None
        self._ours = False

    def hold(self) -> None:
        """Become or stay the holder. Raises :class:`OwnedByOther` if another daemon is, :class:`PublishFailed` if a
        request fails.
        """
        now = self._clock.mono()
        held = self._known if self._ours else self._read(now)
        if (until := self.others_until) is not None and held is not None and now < until:
            raise OwnedByOther(
                f"{self._of}: hvd-discover {held.holder} already writes it (Lease {self._namespace}/{self._name}); "
                "stop that one or name another ConfigMap"
            )
        if held is None or held.holder != self._me or now >= held.since + RENEW:
            self._write(held, now)

    @property
    def others_until(self) -> float | None:
        """When another holder's Lease expires unless it is renewed (monotonic seconds); None if there is no other
        holder.
        """
        held = self._known
        return None if held is None or self._ours or held.holder in ("", self._me) else held.since + held.lasts

    def release(self) -> None:
        """Release the Lease if this daemon holds it. If that fails, the Lease expires later."""
        if not self._ours or self._known is None:
            return
        self._ours = False
        try:
            self._sender.send("PUT", self._path(), self._body(self._known, holder=None))
        except ApiError:
            return

    def _read(self, now: float) -> LeaseRecord | None:
        try:
            found = self._sender.send("GET", self._path())
        except ApiError as error:
            if error.reason is Reason.NOT_FOUND:
                self._known = None
                return None
            raise self._failed(error) from None
        self._known = lease_record(found, before=self._known, now=now)
        return self._known

    def _write(self, held: LeaseRecord | None, now: float) -> None:
        self._ours = False
        try:
            if held is None:
                found = self._sender.send("POST", path_of(API, "leases", self._namespace), self._body(None, self._me))
            else:
                found = self._sender.send("PUT", self._path(), self._body(held, self._me))
        except ApiError as error:
            raise self._failed(error) from None
        self._known = lease_record(found, before=None, now=now)  # others may see it before the answer
        self._ours = True

    def _failed(self, error: ApiError) -> PublishFailed:
        if error.reason is Reason.CONFLICT:
            return PublishFailed(self._of, f"another daemon has just claimed Lease {self._name}")
        remedy = "; hvd-elastic manifest configmap gives the right" if error.reason is Reason.FORBIDDEN else ""
        return PublishFailed(self._of, f"Lease {self._namespace}/{self._name}: {error}{remedy}")

    def _path(self) -> str:
        return path_of(API, "leases", self._namespace, self._name)

    def _body(self, before: LeaseRecord | None, holder: str | None) -> dict[str, Any]:
        moment = datetime.fromtimestamp(self._clock.wall(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changes = 0 if before is None else before.changes + (holder not in (None, before.holder))
        acquired = before.acquired if before is not None and before.holder == holder else ""
        version = {} if before is None else {"resourceVersion": before.version}
        spec: dict[str, Any] = {
            "leaseDurationSeconds": math.ceil(LASTS),
            "renewTime": moment,
            "leaseTransitions": changes,
        }
        return {
            "apiVersion": API,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace, **version},
            "spec": spec if holder is None else {**spec, "holderIdentity": holder, "acquireTime": acquired or moment},
        }


def lease_record(found: Mapping[str, Any], *, before: LeaseRecord | None, now: float) -> LeaseRecord:
    """Return the record of the API object ``found``, read at ``now`` (monotonic seconds). A Lease with the version of
    ``before`` keeps the ``since`` of ``before``. Missing fields are empty, or :data:`LASTS`.
    """
    spec, metadata = found.get("spec") or {}, found.get("metadata") or {}
    version, lasts = str(metadata.get("resourceVersion") or ""), spec.get("leaseDurationSeconds")
    same = before is not None and before.version == version
    return LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        version=version,
        lasts=float(lasts) if isinstance(lasts, (int, float)) and lasts > 0 else LASTS,
        since=before.since if same and before is not None else now,
        changes=int(spec.get("leaseTransitions") or 0),
        acquired=str(spec.get("acquireTime") or ""),
    )
