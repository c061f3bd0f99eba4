"""API servers for tests of what follows one."""

from tests.support.kube.fixtures import kube, kube_tls

__all__ = ["kube", "kube_tls"]
