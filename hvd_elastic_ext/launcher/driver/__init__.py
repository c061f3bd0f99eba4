"""The job as a function: an event changes the state, planners decide by the state, actions are done.

Belongs here: events, what each changes (``reduce``), the order in which planners are asked (``plan``), and the
executor, which alone speaks to the outside.

Never here: decisions. They are ``planners`` and ``rules``.
"""
