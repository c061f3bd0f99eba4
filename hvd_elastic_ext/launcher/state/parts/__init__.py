"""What :class:`~hvd_elastic_ext.launcher.state.job.JobState` consists of, by subject.

Belongs here: values, and what follows from one of them alone.

Never here: what follows from several parts. That is in ``state/facts``.
"""
