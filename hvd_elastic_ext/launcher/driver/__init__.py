"""The job as a function: an event changes the state, planners decide by the state, the executor does the actions.

Belongs here: events, what each changes (``reduce``), the order of planners (``plan``), the executor, and
recordings.

Never here: decisions. They are ``planners`` and ``rules``.
"""
