"""Elastic jobs: hosts come and go, and the training goes on.

MPI's world does not grow or shrink, so a change makes a new *generation*: all ranks are started
anew, on the hosts that there are. What they had committed lies in the memory of their hosts.

- `driver.py` the loop: wait for hosts, run a generation, see how it ended, once more
- `hosts.py` which hosts there are, and which of them have failed
- `generation.py` one job of mpirun, which ends at the first failure or change
- `agents.py` the launcher's side of the agents, one on each machine
- `agent.py` the process that owns a machine's folder and starts its ranks
- `ask.py` what mpirun starts in a rank's place: it asks the agent for the rank
"""
