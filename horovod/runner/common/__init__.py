"""Horovod's package of that name."""
