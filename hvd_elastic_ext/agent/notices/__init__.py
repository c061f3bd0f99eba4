"""Notices that this host will go: from files, and from the metadata services of clouds.

A child of the agent polls a service: one that hangs never blocks the agent. All modules but ``files`` and ``watch`` are
loaded in that child only, since they take longer to load than the agent.

Belongs here: notices in files, one module a cloud (:class:`model.Cloud`), the HTTP client, how often to poll.

Never here: what follows from a notice.

::

    agent ── files (beside the socket, or named by the job)
       └──── watch ══ pipe ══ child: poller ── detect ── aws · gcp · azure · alibaba ──▶ token ──▶ model
                                        └── http (sockets)
"""
