"""Notices that this host will go: from files, and from the metadata services of clouds.

A child of the agent polls a service, so a service that hangs never blocks the agent. All modules except ``files`` and
``watch`` are loaded only in that child, because they take longer to load than the agent.

Belongs here: notices in files, one module for each cloud (:class:`metadata.Cloud`), how a service is asked, how often.

Never here: the reaction to a notice.

::

    agent ── files (beside the socket, or named by the job)
       └──── watch ══ pipe ══ child: poller ── aws · gcp · azure · alibaba ──▶ metadata
"""
