"""The student's script: its places, what a step writes, and what the checks see on the ranks."""

import ast
import textwrap
from pathlib import Path

import pytest
from mpi import TORCH, Ranks

from hvdlab import conversion
from hvdlab.conversion.places import PLACES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def torch_script(tmp_path):
    return conversion.begin("fashion_mnist_torch.py", tmp_path / "work" / "mine.py")


@pytest.mark.parametrize("name", PLACES)
def test_every_step_has_one_place_and_nothing_else_changes(tmp_path, name):
    script = conversion.begin(name, tmp_path / "mine.py")
    marked = script.path.read_text()
    kept = [line for line in marked.splitlines() if not line.lstrip().startswith(("# >>", "# <<"))]
    original = (ROOT / "scripts" / name).read_text()
    assert kept == original.splitlines()
    assert ast.dump(ast.parse(marked)) == ast.dump(ast.parse(original))
    assert script.solution.is_file() and not script.is_converted
    assert all(script.written(step) is None for step in script.steps)


def test_a_step_is_written_to_its_place_with_its_indentation(torch_script):
    changes = torch_script.put("3", "rate = args.base_lr\nrate = args.base_lr * hvd.size()")
    assert changes.splitlines()[-1] == "+rate = args.base_lr * hvd.size()"
    assert "    rate = args.base_lr * hvd.size()\n" in torch_script.path.read_text()
    assert "hvd.size()" in torch_script.written("3") and torch_script.written("4") is None
    again = conversion.begin("fashion_mnist_torch.py", torch_script.path)
    assert again.written("3"), "what was written stays"
    fresh = conversion.begin("fashion_mnist_torch.py", torch_script.path, again=True)
    assert fresh.written("3") is None


def test_what_is_not_finished_or_as_before_is_not_written(torch_script):
    torch_script.put("4", "# YOUR CODE HERE\n...")
    assert torch_script.written("4") is None
    torch_script.put("3", "rate = args.base_lr\n")
    assert torch_script.written("3") is None


def test_no_python_changes_nothing(torch_script):
    before = torch_script.path.read_text()
    with pytest.raises(SyntaxError):
        torch_script.put("4", "optimizer = hvd.(")
    assert torch_script.path.read_text() == before


def test_lost_marks_and_unknown_steps_are_told(torch_script, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no step '12'"):
        torch_script.put("12", "")
    text = torch_script.path.read_text().replace("# >> step 4", "")
    torch_script.path.write_text(text)
    with pytest.raises(ValueError, match="are gone; put them back"):
        torch_script.put("4", "")
    with pytest.raises(ValueError, match="there are no steps for"):
        conversion.begin("train.py", tmp_path / "x.py")


@pytest.mark.parametrize(
    ("number", "gpus"), [("local_rank()", [0, 1, 0, 1]), ("rank()", [0, 1, 2, 3]), ("", [0] * 4)]
)
def test_the_gpu_that_a_process_would_take(torch_script, number, gpus):
    torch_script.put(
        "2",
        f"""
        use_cuda = torch.cuda.is_available() and not args.no_cuda
        device = torch.device("cuda")
        {f"torch.cuda.set_device(hvd.{number})" if number else "pass"}
    """,
    )
    assert [gpu for _, gpu in conversion.chosen_gpus(torch_script)] == gpus


def test_images_of_several_ranks():
    assert conversion.together([[1, 2, 3], [3, 4]]) == (4, 1)


def run_script(path: str, root: str) -> dict:
    from hvdlab.conversion.observe import run_here

    options = ["--limit", "256", "--batch-size", "32", "--no-cuda", "--epochs", "2"]
    return vars(run_here(path, "torch", options, root))


@pytest.fixture(scope="module")
def pair(full_sets):
    ranks = Ranks(2, modules=TORCH)
    yield ranks
    ranks.stop()


def test_what_the_ranks_of_the_solution_did(pair, tmp_path):
    path = ROOT / "scripts" / "solutions" / "fashion_mnist_torch.py"
    zero, one = pair.run(run_script, str(path), str(tmp_path), timeout=120)
    assert (zero["rank"], one["rank"], one["size"]) == (0, 1, 2)
    assert zero["before"] == one["before"] and zero["after"] == one["after"]
    assert conversion.together([zero["epochs"][0], one["epochs"][0]]) == (256, 0)
    assert zero["epochs"][0] != zero["epochs"][1]
    assert max(zero["rates"]) == pytest.approx(0.04) and zero["rates"][0] == pytest.approx(0.02)
    assert zero["printed"] and not one["printed"]
    assert "checkpoint.pt" in zero["files"] and not one["files"]


def test_what_the_ranks_of_an_unfinished_script_did(pair, torch_script, tmp_path):
    """Horovod is there, but nothing else: each rank trains alone, and the record shows it."""
    torch_script.put(
        "1",
        textwrap.dedent("""
        import torch
        import horovod.torch as hvd
        hvd.init()
    """),
    )
    path = str(torch_script.path)
    zero, one = pair.run(run_script, path, str(tmp_path / "ranks"), timeout=120)
    assert zero["before"][0] != one["before"][0] and zero["after"][-1] != one["after"][-1]
    assert conversion.together([zero["epochs"][0], one["epochs"][0]]) == (256, 256)
    assert max(zero["rates"]) == pytest.approx(0.02)
    assert one["printed"] and "checkpoint.pt" in one["files"]
