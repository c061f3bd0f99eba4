"""The state of a job as metrics for Prometheus.

Belongs here: metrics of the job's state (``gauges``), metrics counted from events of the journal (``counters``),
the port that serves them.

Never here: decisions. They only show what is known already.
"""
