"""What is known of a cluster, and which of its pods are hosts. Pure.

Belongs here: objects as they are kept, signals, verdicts, how long a change is held back, explanations of all that.

Never here: requests, threads, files.
"""
