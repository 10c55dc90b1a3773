"""What the check pretends of the machine, so that its verdict is the same on every machine."""

CORES = 8
GPUS = 4
