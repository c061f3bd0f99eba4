"""What follows from the job's state.

Belongs here: questions about :class:`JobState` that several planners or others ask, by subject.

Never here: anything that changes the state or asks for an action, and what the rules decide.
"""
