"""How bytes move: one file, one algorithm, all with the interface of `interface.Collectives`."""
