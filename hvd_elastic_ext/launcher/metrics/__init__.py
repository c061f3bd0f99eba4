"""The state of a job as metrics for Prometheus.

Belongs here: the figures, what they are counted from, the port that serves them.

Never here: decisions. Figures only show what is known already.
"""
