"""What the cloud says of this machine: that it is taken back, and by when.

Asked by a child of the agent, which does nothing else, so that whatever an
endpoint does (hang, drip, break) the agent's loop never waits for it. Loaded only
where somebody asks for it, and in that child only: it takes longer to load than
the agent itself.

Belongs here: a module for each cloud behind one port (:class:`model.Cloud`), pure
but for what it remembers of its last look; the one HTTP edge; how often is looked.

Never here: what a notice does. That goes the way of the notice files.

::

    agent ── watch ══ pipe ══ child: poller ── detect ── aws · gcp · azure · alibaba ──▶ token ──▶ model
                                        └── http (sockets)
"""
