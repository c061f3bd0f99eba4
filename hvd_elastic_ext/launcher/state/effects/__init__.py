"""What changes the job's state at once: effects of events, and what several planners have done.

Belongs here: one subject a module, in the folder of the same name as its rules and planners. A function changes the
state and adds actions to :attr:`JobState.to_do`; it does not compare desired with actual.

Never here: what has to be done by itself at a look. That is a planner.
"""
