"""What changes the job's state at once.

Belongs here: one subject a module, in the folder of the same name as its rules and planners. What events change; and
what several planners, or an event and a planner, cause, even if it depends on the clock or on what is
desired: an engine's change of the world, steps that save memory, a transfer and its limit, the journal line of a
change, hosts cut off. A function changes the state and adds actions to :attr:`JobState.to_do`.

Never here: what one planner does alone, and when it is due: a planner calls it at a look.
"""
