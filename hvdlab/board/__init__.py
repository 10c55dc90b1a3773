"""`hvdlab board`: a live page for the trainer; who has passed which exercise, and who is stuck.

    hvdlab board                              # the trainer; says what students type
    hvdlab join http://10.0.0.5:8765/TOKEN    # each student, once; or the hub sets HVDLAB_BOARD

Of each check it gets the student's name, the lab, the exercise, the verdict and its first
sentence, and never code. `send` is the student's side, `room` what is known of the class,
`server` the page.
"""

from __future__ import annotations

from .send import report

__all__ = ["report"]
