"""Notices from the metadata services of clouds.

A child of the agent polls them: a service that hangs never blocks the agent. The modules are loaded in that child
only, since they take longer to load than the agent.

Belongs here: one module a cloud (:class:`model.Cloud`), the HTTP client, how often to poll.

Never here: what follows from a notice.

::

    agent ── watch ══ pipe ══ child: poller ── detect ── aws · gcp · azure · alibaba ──▶ token ──▶ model
                                        └── http (sockets)
"""
