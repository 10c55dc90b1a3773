"""Converting a script step by step in a notebook: labs 05 to 07.

    script = conversion.begin("fashion_mnist_torch.py", "work/my_torch.py")
    %%step 4            # at the top of a cell: the cell is what stands at step 4 of the script
    ranks = conversion.observe(script)                  # what two ranks did
    conversion.judge(check, script, "optimizer")        # whether this step is done

A step is judged as `hvdlab check` does it: by what the ranks did, not by how it is written.
"""

from __future__ import annotations

from .measured import crowded, draw, draw_speeds, measure, speed_up
from .observe import judge, observe
from .script import Script, begin, current, solution

__all__ = ["Script", "begin", "crowded", "current", "draw", "draw_speeds"]
__all__ += ["judge", "measure", "observe", "solution", "speed_up"]
