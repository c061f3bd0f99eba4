"""Metadata services of clouds as their vendors document them, on a port of 127.0.0.1, with notices on demand.

    with MetadataServer(AwsService()) as server:
        server.service.interrupt(in_s=120)     # … requests to server.url get the notice
        server.service.withdraw()
        server.faults.answer(500)              # … until server.faults.clear()

``tests/contract/notices`` checks them against the documents. On a machine of a cloud, the same tests check its real
service (``HVD_TEST_METADATA=aws``).
"""

from tests.support.metadata.alibaba import AlibabaService
from tests.support.metadata.aws import AwsService
from tests.support.metadata.azure import AzureService
from tests.support.metadata.gcp import GcpService
from tests.support.metadata.server import MetadataServer

__all__ = ["AlibabaService", "AwsService", "AzureService", "GcpService", "MetadataServer"]
