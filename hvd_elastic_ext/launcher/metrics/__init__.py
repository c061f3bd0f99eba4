"""What a job is, as numbers for Prometheus.

Belongs here: which figures there are, what they are counted from, the port that shows them.

Never here: decisions. What a figure says is known before it is shown.
"""
