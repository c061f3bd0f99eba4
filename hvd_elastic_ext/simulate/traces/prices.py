"""Histories of spot pools: prices from AWS, and placement scores from SpotLake (IISWC '22).

A pool is an instance type in a zone. It has the wanted ``hosts`` while its price is at most ``max_price``. In files of
SpotLake it has at most ``T3`` hosts: the largest capacity that recently scored 3. Without ``T3``, or
with a given ``score``, the score decides: all hosts or none.

AWS: ``aws ec2 describe-spot-price-history`` (JSON), or the same fields as columns of a CSV file, in any order; only
Linux counts. SpotLake: the schema of ``ddps-lab/spotlake-open-data``, one snapshot, or many joined.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.simulate.traces.published import (
    MISSING,
    Assumed,
    Level,
    Levels,
    Pool,
    count_of,
    levels,
    moment,
    price_of,
    table,
)

AWS: Final = ("Timestamp", "InstanceType", "ProductDescription", "AvailabilityZone", "SpotPrice")
AWS_ALSO: Final = ("AvailabilityZoneId",)
SPOTLAKE: Final = ("Time", "InstanceType", "AZ", "SPS", "SpotPrice")
SPOTLAKE_ALSO: Final = ("Region", "T3", "T2", "IF", "OndemandPrice", "Savings")
ENTRIES: Final = "SpotPriceHistory"
LINUX: Final = "Linux/UNIX"
PLACES: Final = ("hosts", "max_price", "type", "zone")


def aws(text: str, *, where: str, assumed: Assumed) -> Levels:
    """Read a price history of AWS. Raises :class:`UsageError` that names the line, or the entry."""
    assumed.only(PLACES, where=where, what="a history of prices")
    rows = _entries(text, where=where) if text.lstrip().startswith("{") else _lines(text, where=where)
    found: dict[tuple[float, Pool], Level] = {}
    for place, values in rows:
        at, price = moment(place, values, "Timestamp"), price_of(place, values, "SpotPrice")
        pool = _pool(place, values, "AvailabilityZone", assumed)
        if str(values["ProductDescription"]).startswith(LINUX) and pool is not None:
            found[at, pool] = Level(at, pool, assumed.hosts if price <= assumed.max_price else 0, price)
    return _levels(found, where=where, assumed=assumed)


def spotlake(text: str, *, where: str, assumed: Assumed) -> Levels:
    """Read snapshots of SpotLake. Raises :class:`UsageError` that names the line."""
    assumed.only((*PLACES, "score"), where=where, what="an archive of SpotLake")
    rows = table(text, where=where, needed=SPOTLAKE, known=(*SPOTLAKE, *SPOTLAKE_ALSO))
    found: dict[tuple[float, Pool], Level] = {}
    for place, values in rows:
        at, pool = moment(place, values, "Time"), _pool(place, values, "AZ", assumed)
        price = math.inf if values["SpotPrice"] in MISSING else price_of(place, values, "SpotPrice")
        most = _placed(place, values, assumed)
        if pool is not None:
            count = min(assumed.hosts, most) if price <= assumed.max_price and price < math.inf else 0
            found[at, pool] = Level(at, pool, count, None if price == math.inf else price)
    return _levels(found, where=where, assumed=assumed)


def _placed(place: str, values: Mapping[str, Any], assumed: Assumed) -> int:
    """Return how many hosts the scores allow."""
    if values["SPS"] in MISSING:
        return 0
    score = count_of(place, values, "SPS")
    most = assumed.hosts if score >= assumed.score else 0
    if "score" not in assumed.given and values.get("T3", "") not in MISSING:
        most = count_of(place, values, "T3")
    return most


def _lines(text: str, *, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return table(text, where=where, needed=AWS, known=(*AWS, *AWS_ALSO))


def _entries(text: str, *, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not JSON: {error}; give the output of the command as it is") from None
    entries = data.get(ENTRIES)
    if not isinstance(entries, list):
        raise UsageError(f"{where}: has no list {ENTRIES!r}; give the output of `aws ec2 describe-spot-price-history`")
    for number, entry in enumerate(entries, 1):
        place = f"{where}: entry {number}"
        lacking = [name for name in AWS if not isinstance(entry, dict) or not isinstance(entry.get(name), str)]
        if lacking:
            raise UsageError(f"{place}: has no text {lacking[0]!r}; correct it, or leave it out")
        yield place, entry


def _pool(place: str, values: Mapping[str, Any], zone: str, assumed: Assumed) -> Pool | None:
    """Return the pool of a row; None if it is not selected."""
    kind, where = str(values["InstanceType"]), str(values[zone])
    for name, value in (("InstanceType", kind), (zone, where)):
        if (problem := name_error(value)) is not None:
            raise UsageError(f"{place}: {name}: {problem}; correct it, or leave it out")
    wanted = (not assumed.type or kind in assumed.type.split("+"), not assumed.zone or where in assumed.zone.split("+"))
    return Pool(f"{where}.{kind}", kind, assumed.slots or 1) if all(wanted) else None


def _levels(found: Mapping[tuple[float, Pool], Level], *, where: str, assumed: Assumed) -> Levels:
    kinds = sorted({pool.kind for _, pool in found})
    if len(kinds) > 1 and not assumed.type:
        some = ", ".join(kinds[:5]) + (", …" if len(kinds) > 5 else "")
        raise UsageError(f"{where}: has {len(kinds)} instance types ({some}); add --assume type={kinds[0]}")
    if not found:
        raise UsageError(f"{where}: has no selected pool; change --assume type or zone")
    return levels(found.values(), where=where, assumed=assumed)
