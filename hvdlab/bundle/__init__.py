"""The course in one file, for machines without a network, and a server for it.

`make` packs the environment that hvdlab runs in, so that what a trainer has rehearsed is what the
class gets; `unpack` is the program inside of the file, and `serve` hands it out in the room.
"""
