"""An API server of Kubernetes for tests: in memory, in this process, standard library only.

What belongs here: what a client of the API sees of a real server (lists, watches, resource versions, patches, deletion
with grace, RBAC, TLS), faults on demand, counters; and the parts of a cluster that use a server. If this and a real
server differ, this is wrong: ``tests/contract/kube`` runs on both.

    resources, statuses, selectors, patches   tables and rules, pure
    requests                                  what a request asks for, pure
    store                                     objects, versions, history; waiting for changes
    lifecycle, verbs, listing, watching       what each request does
    subresources, logs                        requests for scale, eviction, tokens, output
    execs, execstreams                        commands in pods
    access, tls                               users and their rights
    faults, request_counts, clock             what tests set and read
    web, handler, server                      sockets, threads, and the object that connects all parts
    bodies, cluster_events                    pods and nodes to put into a server, and changes of them
    controller                                the base of the following ones: looks at the store, and acts
    workers                                   keeps the number of a job's pods
    kubelets, containers                      run pods on test hosts
    one_machine, operators, pod_processes,    run jobs of all kinds as processes of this machine
    agents_here
    kueue                                     suspends, admits and evicts jobs
    fixtures                                  ``kube`` for pytest

Start with :class:`tests.support.kube.server.KubeServer`.
"""
