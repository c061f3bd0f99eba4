"""What a running job tells others than its user: options for it, and what they open.

Belongs here: the options of Prometheus, the page, webhooks, TensorBoard and traces; who hears of the journal's events.

Never here: what is told. That is in ``launcher/metrics``, ``launcher/notify`` and ``launcher/exports``.
"""
