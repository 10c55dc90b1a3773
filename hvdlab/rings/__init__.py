"""Your ring, replayed: what an allreduce really sends, counted and drawn.

recording = record(ranks, "ring_allreduce")   # a function that the engines know
recording.bytes_sent                          # of each rank
show(recording)                               # step by step, with a slider
"""

from .record import Message, Recording, record
from .replay import show, storyboard

__all__ = ["Message", "Recording", "record", "show", "storyboard"]
