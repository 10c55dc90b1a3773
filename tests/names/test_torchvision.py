"""torchvision can be imported beside any PyTorch, and its operators say which build they need."""

import inspect
import subprocess
import sys

import mpi

OPERATORS = """
    import hvdnames.start, os
    import torch, torchvision  # before horovod, as most programs do it
    import horovod.torch as hvd

    calls = {
        "nms": lambda: torchvision.ops.nms(torch.rand(3, 4), torch.rand(3), 0.5),
        "pool": lambda: torchvision.ops.ps_roi_pool(torch.rand(1, 4, 4, 4), torch.rand(1, 5), 2),
        "decode": lambda: torchvision.io.decode_image(
            torchvision.io.encode_png(torch.zeros(3, 2, 2, dtype=torch.uint8))),
        "by its own name": lambda: torch.ops.torchvision.nms(
            torch.rand(3, 4), torch.rand(3), 0.5),
    }
    assert torchvision.models.resnet18()(torch.rand(2, 3, 32, 32)).shape == (2, 1000)
    print("fits" if torchvision.extension._has_ops() else "does not fit")
    for name, call in calls.items():
        try:
            print(type(call()).__name__)
        except RuntimeError as error:
            print(error)
    """


def program(tmp_path, source: str, **env: str) -> subprocess.CompletedProcess:
    file = tmp_path / "program.py"
    file.write_text(inspect.cleandoc(source))
    env = mpi.environment(extra=env)
    command = [sys.executable, str(file)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)


def test_what_works_beside_a_pytorch_that_it_was_not_built_for(tmp_path):
    """PyPI's build beside a CPU build of PyTorch; where the builds fit, all of it works."""
    done = program(tmp_path, OPERATORS)
    assert done.returncode == 0, done.stderr
    fits, *told = done.stdout.splitlines()
    if fits == "fits":
        assert told == 4 * ["Tensor"]
    else:
        wanted = "The build that fits: pip install --force-reinstall --no-deps 'torchvision==0."
        assert len(told) == 4 and all(wanted in line for line in told), told


def test_it_is_left_as_it_is_where_old_names_are_switched_off(tmp_path):
    fits = program(tmp_path, OPERATORS).stdout.startswith("fits")
    alone = program(tmp_path, OPERATORS, HVDLITE_OLD_NAMES="0")
    assert (alone.returncode == 0) == fits
    assert fits or "operator torchvision::nms does not exist" in alone.stderr


def test_the_build_that_fits():
    import torch

    from hvdnames.torchvision_names import _fitting_build

    minor = int(torch.__version__.split(".")[1])
    assert f"'torchvision==0.{minor + 15}.*'" in _fitting_build()
    build = torch.__version__.partition("+")[2] or "cpu"
    assert _fitting_build().endswith(f"download.pytorch.org/whl/{build}")
