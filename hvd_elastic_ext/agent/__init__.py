"""Parent of one host's training processes: ``python -m hvd_elastic_ext.agent``.

Belongs here: code that starts training processes, owns their commit memory and ends
all their descendants. It uses only modules of the standard library that load in a
few milliseconds (named tuples, because dataclasses load slowly).
``slots`` has the training processes, ``notices`` what announces that this host will go.
``prestop`` is a program of its own: a worker pod runs it before it ends.

Never here: modules of ours outside ``core`` and ``io``, and of these only small ones without dataclasses; other
packages, except in ``metrics``, at Prometheus' first request; decisions about hosts or worlds.

Orders come in and events go out as JSON, over one connection to the launcher, or
as lines over the agent's own pipes; ``docs/agent.md`` lists all of them::

    launcher ══ agent ─┬─ supervisor of slot 0 ── training process ── whatever that starts
                       │                          └─ link and rendezvous proxy of slot 0
                       └─ supervisor of slot 1 ── training process ── …

The supervisor, a fork of the agent, adopts every orphan below it (a *subreaper*). So it
knows the processes of its slot, even those that left session, group and parent.
Supervisor and agent watch each other's pipe: if one is killed, the other ends the processes that are left.

Modules import only those of lower lines; the ones in brackets are loaded if a job asks for them::

    __main__
    loop · job
    helper · channel · claim · (metrics)
    slots · notices · resolver · host_facts · (load)
    ports
    orders · descriptors
"""
