"""What a checkpoint consists of: names, parts, places of tensors, manifest, checksums.

Belongs here: which bytes lie in which file, and what is wrong with a file.

Never here: storage, and commits in memory.
"""
