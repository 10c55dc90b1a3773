"""Sabotage and catch-up: texts that are changed, and what the command says."""

import ast
import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.check import CheckError
from hvdlab.check.aliases import arguments_for, given
from hvdlab.check.catch_up import catch_up, halfway, up_to
from hvdlab.check.course import ALL, find, options_named, script_of
from hvdlab.check.mistakes import MISTAKES, fitting
from hvdlab.check.options import options_of
from hvdlab.check.run import copy_folder
from hvdlab.check.sabotage import hide, known_as, reveal

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = """
import argparse

import horovod.torch as hvd
import torch
from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=50)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
hvd.init()
torch.cuda.set_device(hvd.local_rank())
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
loaders = []
for train in (True, False):
    images = datasets.MNIST(".", train=train, download=True, transform=transforms.ToTensor())
    sampler = torch.utils.data.DistributedSampler(images, hvd.size(), hvd.rank())
    loaders.append(
        torch.utils.data.DataLoader(
            images, args.batch_size, sampler=sampler, num_workers=1,
            multiprocessing_context="forkserver",
        )
    )
for epoch in range(args.epochs):
    loaders[0].sampler.set_epoch(epoch)
    for x, y in loaders[0]:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    # Validation as many write it: without torch.no_grad().
    right = sum((model(x.cuda()).argmax(1) == y.cuda()).float().mean() for x, y in loaders[1])
    right = hvd.allreduce(right / len(loaders[1]), name="accuracy")
    if hvd.rank() == 0:
        print(epoch, right.item())
"""
SCRIPTS = pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)


def hvdlab(*arguments, cwd, columns=200):
    return subprocess.run(
        [sys.executable, "-c", "from hvdlab.cli import app; app()", *map(str, arguments)],
        capture_output=True, text=True, timeout=240, cwd=cwd, env=environment(columns),
    )  # fmt: skip


def environment(columns):
    from mpi import environment as of_ranks

    return of_ranks(extra={"COLUMNS": str(columns)})


@SCRIPTS
def test_a_script_is_known_by_what_it_is_like(script):
    for path in (script.original, script.solution):
        assert script_of(script.lab, path) == script
        assert known_as(path) == script


@SCRIPTS
def test_sabotage_hides_one_mistake_and_reveals_it(script, tmp_path):
    target = tmp_path / "s.py"
    for seed in range(5):
        mistake = hide(script.solution, target, seed=seed)
        assert mistake in fitting(script, script.solution)
        assert not {"device", "threads"} & set(mistake.breaks)
        assert ast.dump(ast.parse(target.read_text())) != ast.dump(
            ast.parse(script.solution.read_text())
        )
        assert reveal(target).startswith(f"{mistake.name}: {mistake.what}")
        assert mistake.what not in target.read_text()


def test_sabotage_says_what_does_not_fit(tmp_path):
    plain = ALL[0].original
    with pytest.raises(CheckError, match="no mistake 'no-such' fits"):
        hide(ALL[0].solution, tmp_path / "s.py", "no-such")
    with pytest.raises(CheckError, match="is not converted"):
        hide(plain, tmp_path / "s.py")
    with pytest.raises(CheckError, match="is there already, and stays as it is"):
        hide(plain, plain)
    with pytest.raises(CheckError, match="nothing is known"):
        reveal(plain)


def test_every_mistake_fits_its_solutions():
    for script in ALL:
        names = {each.name for each in fitting(script, script.solution)}
        assert names == {each.name for each in MISTAKES if script.name in each.edits}


@SCRIPTS
def test_every_halfway_script_is_python_and_the_last_is_the_solution(script):
    for number in range(1, 12):
        text = halfway(script, up_to(number))
        ast.parse(text)
        assert text.count("hvd.init()") == 1
    assert text == script.solution.read_text()
    with pytest.raises(CheckError, match="no step 12"):
        up_to(12)


@SCRIPTS
def test_catch_up_keeps_what_is_the_students_own(script):
    here = "    return parser.parse_args()\n"
    own = "    print('my own line')\n"
    mine = script.original.read_text().replace(here, own + here)
    for number in range(1, 12):
        text = catch_up(script, mine, up_to(number))
        assert text == halfway(script, up_to(number)).replace(here, own + here)
    assert text.replace(own, "") == script.solution.read_text()
    # Where both changed a line, the step wins, and the rest of the student's stays.
    mine = mine.replace("args.base_lr", "args.base_lr * 3")
    assert own in catch_up(script, mine, up_to(11))


@pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)
def test_a_script_of_the_course_gets_all_options(script):
    assert (
        arguments_for(script.phases(), options_of(script.solution.read_text())) == script.phases()
    )


def test_other_scripts_get_the_options_that_they_name():
    text = 'for name, kind in (("--num-epochs", int), ("--lr", float)):\n    add(name, type=kind)\n'
    first, second = arguments_for(ALL[0].phases(), options_of(text))
    assert first == ["--num-epochs=2", "--lr=0.01"] and second == ["--num-epochs=3"]
    assert ALL[0].base_lr(first) == 0.01 and ALL[0].base_lr(second) == 0.02
    assert arguments_for(ALL[0].phases(), options_of("print(1)")) == [[], []]


def test_options_that_are_words_are_found(tmp_path):
    fields = (
        "from dataclasses import dataclass, field\n"
        "@dataclass\nclass Data:\n    batch: int = 64\n"
        "@dataclass\nclass Config:\n    epochs: int = 5\n    data: Data = field()\n"
    )
    path = tmp_path / "train.py"
    path.write_text(fields + "import sys\nname, value = sys.argv[1].split('=')\n")
    first, _ = arguments_for(ALL[0].phases(), options_named(path))
    assert first == ["epochs=2", "data.batch=16"] and given(first, "--batch-size") == "16"
    path.write_text("import sys\nopen('a.yaml')\nsys.argv[1].partition('=')\n")
    (tmp_path / "a.yaml").write_text("optimizer:\n  lr: 0.1\nresume: false\nout: null\n")
    _, second = arguments_for(ALL[0].phases(), options_named(path))
    assert second == ["resume=true", "out={home}/logs"]
    path.write_text("import sys\nopen('a.toml')\nsys.argv[1].partition('=')\n")
    (tmp_path / "a.toml").write_text("epochs = 3\n[optimizer]\nlr = 0.1\n")
    first, _ = arguments_for(ALL[0].phases(), options_named(path))
    assert first == ["epochs=2", "optimizer.lr=0.01"]


def test_what_is_nested_too_deeply_to_be_read_stops_no_other_check(tmp_path):
    path = tmp_path / "train.py"
    for deep in ("-" * 200_000 + "1", "a" + ".b" * 200_000):
        path.write_text(deep)
        with pytest.raises(CheckError, match="train.py is no valid Python"):
            options_named(path)
    path.write_text("open('a.json')\nname, value = words.split('=')\n")
    (tmp_path / "a.json").write_text('{"a": ' * 10_000)
    assert options_named(path) == set()
    path.write_text("open('a.yaml')\nname, value = words.split('=')\n")
    # That refers to itself, whose key is its own, that is not closed, of no known type, too large.
    for text in (
        "&a\nepochs: 2\nagain: *a\n", "&a\n? epochs\n: *a\n", "epochs: [2\n",
        "? [1, 2]\n: 3\n", f"epochs: 2\n# {'x' * 9000}\n",
    ):  # fmt: skip
        (tmp_path / "a.yaml").write_text(text)
        assert options_named(path) == set()
    (tmp_path / "a.yaml").write_text(
        "epochs: !!bool x\nlr: !!timestamp x\n" + "a: {" * 20 + "}" * 20
    )
    assert {"epochs", "lr", "a.a"} <= options_named(path) and len(options_named(path)) < 20


def test_the_labs_own_script_is_found_from_any_folder_of_the_course(tmp_path, monkeypatch):
    begun = tmp_path / "labs" / "06_pytorch" / "work" / "my_torch.py"
    begun.parent.mkdir(parents=True)
    begun.write_text("")
    for folder in (tmp_path, tmp_path / "labs", tmp_path / "labs" / "06_pytorch", begun.parent):
        monkeypatch.chdir(folder)
        assert find("6") == begun


def test_what_lies_beside_a_script_goes_with_it(tmp_path):
    for name in ("train.py", "options.yaml", "net/__init__.py", ".secret", "__pycache__/x.pyc"):
        path = tmp_path / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "theirs" / "large.bin").write_bytes(bytes(2 << 20))
    copy_folder(tmp_path / "theirs" / "train.py", tmp_path / "copy")
    found = {str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*.*")}
    assert found == {"train.py", "options.yaml", "net/__init__.py"}


def test_the_command_says_what_it_can_not_check(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    for arguments, message in (
        (["check", "05", "broken.py"], "broken.py is no valid Python"),
        (["check", "05", "nowhere.py"], "nowhere.py"),
        (["check", "03", "broken.py"], "lab 03 has no checks; there are 05, 06, 07"),
        (["check"], "name a lab"),
        (["check", "06"], "name your script"),
    ):
        done = hvdlab(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr
        assert "Traceback" not in done.stderr


def test_a_diff_is_not_cut_off(tmp_path):
    (tmp_path / "mine.py").write_text(ALL[3].original.read_text())
    done = hvdlab("catch-up", ALL[3].lab, "mine.py", "--from-start", cwd=tmp_path, columns=40)
    added = set(ALL[3].solution.read_text().splitlines())
    added -= set(ALL[3].original.read_text().splitlines())
    assert done.returncode == 0 and max(map(len, added)) > 80
    assert all(f"+{line}" in done.stdout for line in added)


@pytest.mark.slow
def test_a_folder_is_marked(tmp_path):
    """Real scripts, end to end: right, with a mistake, not converted; and one that is no Python."""
    folder = tmp_path / "submissions"
    for name in ("ann", "bob", "dan", "eve"):
        (folder / name).mkdir(parents=True)
    script = ALL[3]
    (folder / "ann" / "mine.py").write_text(script.solution.read_text())
    hide(script.solution, folder / "bob" / "mine.py", "no-broadcast")
    (folder / "dan" / "mine.py").write_text(script.original.read_text())
    (folder / "eve" / "mine.py").write_text("def f(:\n")
    done = hvdlab("check", "06", "--all", folder, "--out", tmp_path / "marks", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    with open(tmp_path / "marks" / "marks.csv") as file:
        rows = list(csv.DictReader(file))
    total = {row["script"]: row for row in rows if row["step"] == "all"}
    result = {(row["script"], row["step"]): row["result"] for row in rows}
    assert total["ann/mine.py"]["result"] == "done"
    assert total["ann/mine.py"]["points"] == total["ann/mine.py"]["of"]
    assert [step for (name, step), r in result.items() if "bob" in name and r != "done"] == [
        "broadcast", "all",
    ]  # fmt: skip
    assert result["dan/mine.py", "init"] == "not done"
    for step in ("rate", "optimizer", "broadcast", "shard", "rank0", "metrics", "threads"):
        assert result["dan/mine.py", step] == "not seen", step  # each process trains alone
    assert total["dan/mine.py"]["points"] == "0"
    assert total["eve/mine.py"]["result"] == "not checked"
    page = (tmp_path / "marks" / "marks.html").read_text()
    assert "ann/mine.py" in page and "eve/mine.py" in page


@pytest.mark.slow
def test_a_script_of_tensorflow_is_checked(tmp_path):
    script = ALL[5]
    done = hvdlab("check", script.lab, script.solution, "--json", cwd=tmp_path)
    verdict = json.loads(done.stdout)
    assert done.returncode == 0 and verdict["done"], done.stderr + done.stdout
    assert verdict["version_of"] == script.name and len(verdict["steps"]) == 11


@pytest.mark.slow
def test_a_script_from_outside_is_advised(tmp_path):
    """With loaders in processes of their own, and a validation that looks like training."""
    (tmp_path / "outside.py").write_text(OUTSIDE)
    done = hvdlab("check", "--advise", "outside.py", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ended"] == ""
    assert {step["key"]: step["result"] for step in verdict["steps"]} == {
        "init": "done", "device": "done", "rate": "done", "optimizer": "done",
        "broadcast": "open", "shard": "done", "rank0": "done", "metrics": "unseen",
        "schedule": "unseen", "threads": "open",
    }  # fmt: skip
