"""An API server of Kubernetes for tests: in memory, in this process, standard library only.

What belongs here: what a client of the API can see of a real server (lists, watches, resource versions, patches,
deletion with grace, RBAC, TLS), faults on demand, and counters. What never does: scheduling, garbage collection,
controllers. Where this and a real server differ, this is wrong: ``tests/contract/kube`` runs on both.

    resources, statuses, selectors, patches   tables and rules, pure
    store                                     objects, versions, history, who waits for changes
    lifecycle, verbs, listing, watching       what each request does
    execs, execstreams                        commands in pods
    access, tls                               who asks, and what they may do
    faults, counts, clock                     what tests hold
    web, server                               sockets and threads, and the object that joins all
    bodies, acts                              pods and nodes to put into it, and what happens to them
    workers                                   what keeps a job's pods as many as they should be
    kubelets, containers                      what runs them, on test hosts
    fixtures                                  ``kube`` for pytest

Start with :class:`tests.support.kube.server.KubeServer`.
"""
