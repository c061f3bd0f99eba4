"""The launcher's driver in random histories of a simulated cluster, watched by an oracle that knows the truth."""
