"""The course's toolkit: data sets, timing, comparison of runs, plots.

Importing it is cheap: no framework and no MPI is loaded here.
"""
