"""An API server of Kubernetes for tests: in memory, in this process, standard library only.

What belongs here: what a client of the API can see of a real server (lists, watches, resource versions, patches,
deletion with grace, RBAC, TLS), faults on demand, counters; beside it, what acts in a cluster. Where this and a real
server differ, this is wrong: ``tests/contract/kube`` runs on both.

    resources, statuses, selectors, patches   tables and rules, pure
    store                                     objects, versions, history, who waits for changes
    lifecycle, verbs, listing, watching       what each request does
    execs, execstreams                        commands in pods
    access, tls                               who asks, and what they may do
    faults, counts, clock                     what tests hold
    web, server                               sockets and threads, and the object that joins all
    bodies, acts                              pods and nodes to put into it, and what happens to them
    controller                                what looks at the store, and acts: all of the following
    workers                                   what keeps a job's pods as many as they should be
    kubelets, containers                      what runs them, on test hosts
    one_machine, operators, pod_processes     jobs of all kinds, as processes of this machine
    kueue                                     what suspends, admits and evicts them
    fixtures                                  ``kube`` for pytest

Start with :class:`tests.support.kube.server.KubeServer`.
"""
