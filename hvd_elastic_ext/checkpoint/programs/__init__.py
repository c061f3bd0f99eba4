"""Programs: ``hvd-elastic checkpoints``, and those that agents start for checkpoints.

Belongs here: requests and answers, options and exit codes.

Never here: the content of a checkpoint.
"""
