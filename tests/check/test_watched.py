"""What the observers see of a script, and what they tell it."""

from dataclasses import replace
from pathlib import Path

import pytest
from checks_library import library

from hvdlab.check.aliases import canonical
from hvdlab.check.evidence import read
from hvdlab.check.run import Recording, observe

# What the script is told of the course's options, in each of two runs.
TOLD = [
    ["--epochs=2", "--base-lr=0.01", "--log-dir={home}/logs"],
    ["--epochs=3", "--resume", "--log-dir={home}/logs"],
]


def watch(folder: Path, text: str, **beside: str) -> Recording:
    """Run a script twice, with these modules, such as net__layers, beside it."""
    for name, module in beside.items():
        place = folder / f"{name.replace('__', '/')}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(module)
    path = folder / "script.py"
    path.write_text(text)
    return observe(path, [[], []], variables=TOLD)


def events(recording: Recording, kind: str) -> list[dict]:
    return [event for event in recording.events[0] if event["event"] == kind]


def test_a_script_is_told_its_options_where_it_asks_its_environment(tmp_path):
    recording = watch(
        tmp_path,
        "import os\n"
        "name = 'FM_' + 'epochs'.upper()\n"
        "print(os.environ[name], os.getenv('LR', '5'), os.environ.get('MIN_LR'), end=' ')\n"
        "print('RESUME' in os.environ, os.getenv('RESUME') == 'yes', os.environ['LOG_DIR'])\n"
        "assert os.environb.get(b'EPOCHS') is None and not os.getenv('NO_EPOCHS_HERE')\n",
    )
    first, second = recording.printed[0]
    assert first.startswith("2 0.01 None False False /") and first.endswith("rank-0/logs")
    assert second.startswith("3 5 None True True /")
    phases = read(recording)[0].phases
    assert [phase.option("--epochs") for phase in phases] == ["2", "3"]
    assert [phase.option("--resume") is not None for phase in phases] == [False, True]


PARSERS = {
    "argparse": """
import argparse
first = argparse.ArgumentParser(add_help=False)
first.add_argument("--config")
known, rest = first.parse_known_args()
parser = argparse.ArgumentParser(parents=[first])
for name, value in {"n_epochs": 9, "base_lr": 0.5, "min_lr": 0.1}.items():
    parser.add_argument("--" + name, type=type(value), default=value)
parser.add_argument("--log" + "dir")
parser.add_argument("--res" + "ume", action="store_true")
commands = parser.add_subparsers()
commands.add_parser("train")
args = parser.parse_args(rest)
print(args.n_epochs, args.base_lr, args.resume, args.logdir.split("/")[-1], args.min_lr)
""",
    "click": """
import click
@click.command(name="train")
@click.option("-e", "--num" + "-epochs", "epochs", default=9)
@click.option("--learning" + "_rate", default=0.5)
@click.option("--save", type=click.Path())
@click.option("--resume/--afresh")
@click.option("--min-lr", default=0.1)
def main(epochs, learning_rate, save, resume, min_lr):
    print(epochs, learning_rate, resume, save.split("/")[-2], min_lr)
main()
""",
    "absl": """
from absl import app, flags
flags.DEFINE_integer("epo" + "chs", 9, "")
flags.DEFINE_float("l" + "r", 0.5, "")
flags.DEFINE_float("min_lr", 0.1, "")
flags.DEFINE_boolean("resu" + "me", False, "")
flags.DEFINE_string("output" + "_dir", "", "")
def main(_):
    given = flags.FLAGS
    print(given.epochs, given.lr, given.resume, given.output_dir.split("/")[-1], given.min_lr)
app.run(main)
""",
}


@pytest.mark.parametrize("parser", PARSERS)
def test_a_script_is_told_its_options_where_it_parses_them(tmp_path, parser):
    recording = watch(tmp_path, PARSERS[parser])
    assert recording.printed[0] == ["2 0.01 False logs 0.1", "3 0.5 True logs 0.1"]
    phases = read(recording)[0].phases
    assert [phase.option("--base-lr") for phase in phases] == ["0.01", None]
    assert [phase.option("--resume") is not None for phase in phases] == [False, True]


def test_what_a_script_sets_itself_is_left_to_it(tmp_path):
    recording = watch(
        tmp_path,
        "import os\n"
        "os.environ['LR'] = '0.5'\n"
        "print(os.environ['LR'], os.environ.pop('EPOCHS'), 'LR' in dict(os.environ), end=' ')\n"
        "print(os.environ.pop('RESUME', 'no').strip('\"').lower() == 'yes', end=' ')\n"
        "print(os.environ.get('CHECKPOINT', 'model.pt').split('/')[-1])\n",
    )
    assert recording.printed[0] == ["0.5 2 True False checkpoint", "0.5 3 True True checkpoint"]


@pytest.mark.parametrize(
    "variable, option",
    [
        ("EPOCHS", "--epochs"), ("MNIST_NUM_EPOCHS", "--epochs"), ("LR", "--base-lr"),
        ("WARMUP_EPOCHS", "--warmup-epochs"), ("HOROVOD_LOG_DIR", "--log-dir"),
        ("VAL_BATCH_SIZE", None), ("MIN_LR", None), ("DECAY_EPOCHS", None), ("HOME", None),
        ("A_VERY_LONG_LR", None), ("", None), ("NO_RESUME", None), ("END_LR", None),
    ],
)  # fmt: skip
def test_which_variables_are_options(variable, option):
    assert (canonical(variable) or [None])[0] == option


def test_a_second_run_has_nothing_of_the_first(tmp_path):
    recording = watch(
        tmp_path,
        "import os, state\n"
        "from net import layers\n"
        "state.count += 1\n"
        "layers.count += 1\n"
        "print(state.count, layers.count, os.environ.get('MINE'), end=' ')\n"
        "print(os.environ.get('OMP_NUM_THREADS'))\n"
        "os.environ['MINE'] = os.environ['OMP_NUM_THREADS'] = '7'\n",
        state="count = 0\n",
        net__layers="count = 0\n",
    )
    assert recording.printed[0] == ["1 1 None None", "1 1 None None"]


def test_what_is_told_on_stderr_is_seen(tmp_path):
    recording = watch(
        tmp_path, "import sys, warnings\nprint('loss', 1, file=sys.stderr)\nwarnings.warn('old')\n"
    )
    assert [event["text"] for event in events(recording, "logged")] == ["loss 1", "loss 1"]


def test_texts_are_kept_and_other_files_are_not(tmp_path):
    recording = watch(
        tmp_path,
        "import os\nfolder = os.environ['LOG_DIR']\n"
        "open(f'{folder}/log.csv', 'a').write('epoch,loss\\n1,0.5\\n')\n"
        "open(f'{folder}/model.pt', 'wb').write(bytes(1000))\n"
        "if not os.path.lexists(f'{folder}/pipe'):\n"
        "    os.mkfifo(f'{folder}/pipe')\n"
        "    os.symlink(f'{folder}/pipe', f'{folder}/pipe.txt')\n",
    )
    assert recording.texts == {"logs/log.csv": ["epoch,loss", "1,0.5"] * 2}
    assert recording.files[0] == ["logs/log.csv", "logs/model.pt", "logs/pipe.txt"]


LATE = "import os\n{}\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\n{}\n"
TORCH = ("import torch", "torch.ones(2).to('cuda')")
TENSORFLOW = ("import tensorflow as tf", "tf.config.list_physical_devices('GPU')")


@pytest.mark.slow
@pytest.mark.parametrize("load, look", [TORCH, TENSORFLOW], ids=["torch", "tensorflow"])
def test_gpus_are_hidden_only_before_they_are_looked_at(tmp_path, load, look):
    early = watch(tmp_path, LATE.format(load, look))
    late = watch(tmp_path, LATE.format(f"{load}\n{look}", ""))
    assert [event["chosen"] for event in events(early, "gpu") if "chosen" in event] == [[1], [1]]
    assert not [event for event in events(late, "gpu") if "chosen" in event]


MODEL = """
import torch
from hvdlab import data
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(784, 10, dtype=torch.bfloat16)
        self.norm = torch.nn.BatchNorm1d(10, dtype=torch.bfloat16)
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("complex", torch.ones(2, dtype=torch.cfloat).conj())
        self.register_buffer("graph", torch.ones(2, requires_grad=True) * 2)
        self.register_buffer("rank", torch.rand(2), persistent=False)
        self.register_buffer("later", torch.empty(2, device="meta"))
    def forward(self, images):
        return self.norm(self.layer(images.flatten(1)))
model = Odd()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images = torch.tensor(data.load("mnist").train_images[:16]).to(torch.bfloat16)
model(torch.zeros(2, 28, 28, dtype=torch.bfloat16))
model(images).sum().backward()
optimizer.step()
"""


def test_models_of_any_dtype_can_be_watched(tmp_path):
    recording = watch(tmp_path, MODEL)
    assert [event["error"] for event in events(recording, "end")] == [None, None]
    assert len(events(recording, "buffers")) == 2 and len(events(recording, "step")) == 2


FUNCTIONAL = """
import torch
from hvdlab import data
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
model.register_buffer("mean", torch.ones(10))
images = torch.tensor(data.load("mnist").train_images[:16]).float()
def loss(weights):
    return torch.func.functional_call(model, weights, (images,)).square().mean()
weights = {name: each.detach() for name, each in model.named_parameters()}
print(len(torch.func.grad(loss)(weights)), tuple(model(images[:0]).shape))
"""


def test_functions_that_are_differentiated_can_be_watched(tmp_path):
    recording = watch(tmp_path, FUNCTIONAL)
    assert recording.printed[0] == ["2 (0, 10)", "2 (0, 10)"], recording.logged[0]
    seen = [event["ids"] for event in events(recording, "batch")]
    assert [ids for ids in seen if ids] == [list(range(16))] * 2


# Of a program that takes its steps by itself what is changed, and the step that then is not done.
BY_HAND = {
    "rate": ("rate = args.base_lr * hvd.size()", "rate = args.base_lr"),
    "optimizer": ("hvd.allreduce(param.grad)", "param.grad"),
    "broadcast": ("    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n", ""),
    "shard": ("train_set, hvd.size(), hvd.rank(),", "train_set, 1, 0,"),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", BY_HAND)
def test_steps_that_no_optimizer_tells_of_are_judged(step):
    program = next(x for x in library() if x.file.startswith("mnist_torch-right-steps-by-hand"))
    wrong = replace(program, text=program.text.replace(*BY_HAND[step]), breaks=(step,))
    assert wrong.text != program.text
    recording, _ = wrong.record()
    assert wrong.is_as_expected(verdict := wrong.judge(recording)), str(verdict)
