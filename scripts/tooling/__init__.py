"""What scripts/setup and scripts/build-horovod are made of: standard library only, since nothing is installed yet.

Never here: anything the package itself imports, and anything that needs the virtual environment to exist.
"""
