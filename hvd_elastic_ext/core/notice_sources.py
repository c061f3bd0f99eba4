"""The clouds that announce the end of a machine, with the facts that launcher and agent need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class CloudSpec(NamedTuple):
    """One cloud. ``url``: default URL of the metadata service. ``firmware``: fields in ``/sys/class/dmi/id``, each with
    a word that only machines of this cloud have there.
    """

    url: str
    firmware: tuple[tuple[str, str], ...] = ()


AUTO: Final = "auto"
"""The setting that detects the cloud of the machine."""
_LINK_LOCAL: Final = "http://169.254.169.254"
CLOUDS: Final[Mapping[str, CloudSpec]] = {
    # Services that cannot be mistaken for others come first.
    "gcp": CloudSpec(_LINK_LOCAL, (("product_name", "Google Compute Engine"),)),
    # Every Hyper-V machine has Microsoft as its vendor; only a machine of Azure has this tag.
    "azure": CloudSpec(_LINK_LOCAL, (("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),)),
    "aws": CloudSpec(_LINK_LOCAL, (("sys_vendor", "Amazon EC2"), ("bios_version", "amazon"))),
    "alibaba": CloudSpec("http://100.100.100.200", (("sys_vendor", "Alibaba Cloud"),)),
}
"""The clouds, by the value of ``--notices-from``, which is also the name of the cloud's module in ``agent/notices``."""
