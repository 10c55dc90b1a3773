"""The student's script: its places, what a step writes, and what the checks see on the ranks."""

import ast
from pathlib import Path

import pytest

from hvdlab import conversion
from hvdlab.check.course import STEP
from hvdlab.conversion.places import PLACES
from hvdlab.exercise import Check

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


def results(check: Check) -> dict[str, str]:
    """What a check says of each step, by its title."""
    return {what.partition(":")[0]: result for result, what, _ in check.lines}


def test_a_converted_script_is_done(tmp_path):
    script = conversion.begin("mnist_torch.py", tmp_path / "mine.py")
    script.path.write_text(script.solution.read_text())
    with Check("all of it") as check:
        conversion.judge(check, script, "init", "rate", "shard", "metrics", "threads")
    assert set(results(check).values()) == {"done"} and len(check.lines) == 5, str(check)


def test_each_step_is_judged_while_the_others_are_still_missing(torch_script, tmp_path):
    """Horovod is there and the rate is scaled, but each rank trains alone."""
    imports = "import torch\nimport horovod.torch as hvd\nhvd.init()"
    torch_script.put("1", imports)
    torch_script.put("3", "rate = args.base_lr * hvd.size()")
    with Check("some of it") as check:
        conversion.judge(check, torch_script, "init", "rate", "optimizer", "broadcast", "rank0")
    assert results(check) == {
        STEP[key].title: result
        for key, result in (
            ("init", "done"), ("rate", "done"), ("optimizer", "wrong"), ("broadcast", "wrong"),
            ("rank0", "wrong"),
        )
    }  # fmt: skip
    zero, one = conversion.observe(torch_script)
    first, second = zero.phase(0).steps[0], one.phase(0).steps[0]
    assert first.before != second.before and set(first.ids) <= set(range(256))


def test_the_optimizers_state_is_asked_for_before_a_resume_can_show_it(torch_script):
    wrapped = "optimizer = hvd.DistributedOptimizer(optimizer)"
    weights = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
    torch_script.put("1", "import torch\nimport horovod.torch as hvd\nhvd.init()")
    torch_script.put("4", wrapped)
    for text, result in (
        (weights, "wrong"),
        (f"{weights}\nhvd.broadcast_optimizer_state(optimizer, root_rank=0)", "done"),
    ):
        torch_script.put("5", text)
        with Check("the same start") as check:
            conversion.judge(check, torch_script, "broadcast")
        assert results(check) == {
            STEP["broadcast"].title: "done",
            "the optimizer's state goes to all ranks, too": result,
        }


def test_an_error_of_the_script_is_told(torch_script):
    torch_script.put("1", "import torch\nimport horovod.torch as hvd\nhvd.innit()")
    with Check("who am I?") as check:
        conversion.judge(check, torch_script, "init")
    assert check.result == "wrong"
    assert "AttributeError" in str(check) and "mine.py, line" in str(check)
