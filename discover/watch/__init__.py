"""Access to an API server: lists, watches and single reads.

Belongs here: which request comes next, how its answer is read, how it fails. The requests
themselves: ``hvd_elastic_ext/io/kube``.

Never here: which pods are hosts.
"""
