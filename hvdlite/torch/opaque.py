"""Calls that torch.compile leaves as they are, with all that they call."""

from collections.abc import Callable
from typing import Any

import torch


def opaque(function: Callable[..., Any]) -> None:
    """Let torch.compile never look into a function: the program calls it between two graphs.

    It does what torch.compiler.disable does, which however imports the compiler, in a second, and
    takes half a microsecond of each call, compiled or not. Before PyTorch 2.7 it does nothing.
    """
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        frames.set_code_exec_strategy(function.__code__, skip)
        function._torchdynamo_disable = True  # also within what is looked into
