"""Checkpoints: sealed commits as files on storage, and back.

Belongs here: what is on storage, how it gets there and back, and the commands for it.

Never here: code that runs anything named in a file. Nothing is pickled or unpickled. Torch is imported by
``conversion`` and ``values`` only.

Each folder may import those below it::

    programs           commands, and programs that agents start: JSON requests in, JSON answers out
    conversion         checkpoints as files of other programs, and back
    archive, transfer  checkpoints as a whole; commits on their way between hosts and memory
    stores             local and shared file systems; object stores and the rest through fsspec
    format             names, parts, manifest, checksums: which bytes lie in which file
    values             the values of a State as text: one writer and one reader

A checkpoint is a folder. Each rank that has a side (``core/commit_record.py``) of the commit writes a part of it there,
under new names. When all parts are on storage, ``manifest.json`` is written, which names every file with its length and
checksums. Before that there is no checkpoint; afterwards none of its files is written again. A removal deletes the
manifest first.
"""
