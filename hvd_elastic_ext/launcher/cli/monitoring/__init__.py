"""Output of a running job for other systems: its options, and what they start.

Belongs here: options of metrics, dashboard, webhook, TensorBoard and traces; the receivers of the journal's events.

Never here: what they send. That is in ``launcher/metrics``, ``launcher/notify`` and ``launcher/exports``.
"""
