"""The format of a checkpoint: names, parts, places of tensors, manifest, checksums.

Belongs here: which bytes are in which file, and the checks of a file.
Never here: storage, and commits in memory.
"""
