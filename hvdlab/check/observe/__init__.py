"""What runs inside each rank's process, around the student's script.

    python -m hvdlab.check.observe plan.json

It watches from outside: the runtime's calls, the optimizer's steps, the images that the model
gets. Each rank writes what it saw, line by line, so that nothing is lost when it is killed.
"""
