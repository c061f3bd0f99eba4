"""The loop: an event changes the job (``reduce``), planners decide in their order (``plan``), the executor acts.

:class:`~hvd_elastic_ext.launcher.driver.job.JobState` is all that is known of a job, and
:class:`~hvd_elastic_ext.launcher.driver.roster.Roster` its agents and processes. An event changes them in place: a copy
for each of many heartbeats would cost too much. Decisions are in the rooms beside this one.
"""
