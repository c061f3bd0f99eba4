"""Who is in the world: hosts, seats, agents, processes, training calls, and the next world with its ranks.

Nobody waits for the unproven: a newcomer imports, builds its model and parks beside the training; the members are
interrupted once, when every newcomer of the next world is ready. Processes in different training calls never share a
world.
"""
