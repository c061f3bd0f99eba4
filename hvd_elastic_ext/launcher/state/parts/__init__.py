"""The parts of :class:`~hvd_elastic_ext.launcher.driver.job.JobState`, by subject.

Belongs here: values, and what follows from one of them alone.

Never here: what follows from several parts. That is in ``state/facts``.
"""
