"""Converting a script step by step in a notebook: labs 05 to 07.

    script = conversion.begin("fashion_mnist_torch.py", "work/my_torch.py")
    %%step 4            # at the top of a cell: the cell is what stands at step 4 of the script
    seen = conversion.observe(script, "--epochs", "1")      # on the notebook's ranks, one a rank

A step's check reads what the ranks did, not how the script is written.
"""

from __future__ import annotations

from . import steps
from .measured import crowded, draw, draw_speeds, measure, speed_up
from .observe import Seen, chosen_gpus, observe, together
from .script import Script, begin, current, solution

__all__ = ["Script", "Seen", "begin", "chosen_gpus", "crowded", "current", "draw", "draw_speeds"]
__all__ += ["measure", "observe", "solution", "speed_up", "steps", "together"]
