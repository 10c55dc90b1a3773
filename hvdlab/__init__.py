"""The course's toolkit: data sets, timing, comparison of runs, plots.

Importing it is cheap: no framework and no MPI is loaded here.
"""


def load_ipython_extension(shell: object) -> None:
    """`%load_ext hvdlab` in a notebook; see hvdlab.magic."""
    from .magic import load

    load(shell)
