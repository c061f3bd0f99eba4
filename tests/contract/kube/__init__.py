"""What clients of the Kubernetes API may rely on, asked of the tests' own server, and of a real one if there is one.

``HVD_TEST_KUBECONFIG=~/.kube/config pytest tests/contract/kube`` runs it on both. The real one gets a namespace of
the suite's own, nodes whose names begin with ``hvdt-``, and keeps neither. No kubelet, controller or scheduler is
needed, and none is in the way. Where the two differ, ours is wrong.
"""
