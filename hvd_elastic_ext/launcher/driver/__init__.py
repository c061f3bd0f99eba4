"""The job as a function: an event changes the state, planners decide by the state, actions are done.

Belongs here: events, what each changes (``reduce``), the order in which planners are asked (``plan``), the executor,
which alone speaks to the outside, and recordings of all that.

Never here: decisions. They are ``planners`` and ``rules``.
"""
