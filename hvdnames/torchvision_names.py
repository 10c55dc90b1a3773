"""torchvision beside a PyTorch that it was not built for, as PyPI's CUDA build beside a CPU build.

Its library of operators in C++ can't be loaded there, and then its import fails at the first place
that asks for one. Its models, data sets and transforms need none of them: so the names are declared
that the import asks for, and whatever does need them says which build to install.
"""

import importlib
from types import ModuleType
from typing import Any, NoReturn

# Those that are registered without a look at whether there are operators.
_DECLARED = ("nms", "qnms")
_library: Any = None  # what it declares lasts as long as it does


def _fitting_build() -> str:
    """The command that installs the torchvision for this PyTorch."""
    torch = importlib.import_module("torch")
    version, _, build = torch.__version__.partition("+")
    cuda = torch.version.cuda
    build = build or (f"cu{cuda.replace('.', '')}" if cuda else "cpu")
    minor = int(version.split(".")[1]) + 15  # torchvision 0.15 came with PyTorch 2.0
    index = f"https://download.pytorch.org/whl/{build}"
    return f"pip install --force-reinstall --no-deps 'torchvision==0.{minor}.*' --index-url {index}"


def _no_operators(*_: Any) -> NoReturn:
    torch = importlib.import_module("torch")
    ours = importlib.import_module("torchvision.version").__version__
    raise RuntimeError(
        f"torchvision {ours} was built for another PyTorch than this one ({torch.__version__}): "
        "its models, data sets and transforms work, but not its operators (torchvision.ops, "
        f"torchvision.io, detection). The build that fits: {_fitting_build()}"
    )


def _extension(extension: ModuleType) -> None:
    if extension._has_ops():
        return
    global _library
    library = importlib.import_module("torch").library.Library("torchvision", "FRAGMENT")
    for name in _DECLARED:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl(name, _no_operators, "CompositeExplicitAutograd")
    extension._assert_has_ops, _library = _no_operators, library


def _images(image: ModuleType) -> None:
    if _library is not None:  # else only what they decode with is missing
        image._assert_has_image_ops = _no_operators


PATCHES = {"torchvision.extension": _extension, "torchvision.io.image": _images}
