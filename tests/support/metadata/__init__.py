"""Metadata services of clouds as their vendors document them, on a port of 127.0.0.1, with notices on demand.

    with MetadataServer(AwsService()) as server:
        server.service.interrupt(in_s=120)     # … and whatever looks at server.url is told
        server.service.withdraw()
        server.faults.answer(500)              # … until server.faults.clear()

``tests/contract/notices`` holds them to the documents, and real ones to the same tests where there is one
(``HVD_TEST_METADATA=aws``, on a machine of that cloud).
"""

from tests.support.metadata.alibaba import AlibabaService
from tests.support.metadata.aws import AwsService
from tests.support.metadata.azure import AzureService
from tests.support.metadata.gcp import GcpService
from tests.support.metadata.server import MetadataServer

__all__ = ["AlibabaService", "AwsService", "AzureService", "GcpService", "MetadataServer"]
