"""What a State is made of: each part gives its live state, and takes one.

Belongs here: models, optimizers, handlers, a user's own State, random generators.

Never here: when that is done, and where it is kept.
"""
