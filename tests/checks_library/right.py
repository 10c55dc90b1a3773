"""Right programs in other styles: whatever is right must pass, however it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvdlab.check.course import ALL, Script


@dataclass(frozen=True)
class Right:
    """A converted script, rewritten in another style."""

    name: str
    script: Script
    change: Callable[[str], str]

    def apply(self) -> str:
        """The program. Raises ValueError if the solution has not what is replaced."""
        return self.change(self.script.solution.read_text())


def _edits(*edits: tuple[str, str]) -> Callable[[str], str]:
    def change(text: str) -> str:
        for old, new in edits:
            if text.count(old) != 1:
                raise ValueError(f"{old.strip().splitlines()[0]!r} is not there once")
            text = text.replace(old, new)
        return text

    return change


def _everywhere(*edits: tuple[str, str]) -> Callable[[str], str]:
    def change(text: str) -> str:
        for old, new in edits:
            if old not in text:
                raise ValueError(f"{old!r} is not there")
            text = text.replace(old, new)
        return text

    return change


def _torch_func(text: str) -> str:
    """Functions of the weights instead of a model that has them, and momentum by hand."""
    start, end = text.index("    total = 0.0\n"), text.index("    return metric_average(total")
    return _edits(
        ("def train(model, optimizer, loader", "def train(model, state, loader"),
        ("from torch.nn.functional",
         "from torch.func import functional_call, grad_and_value\nfrom torch.nn.functional"),
        ("def evaluate(model, loader", "def evaluate(model, params, loader"),
        ("(model(images.to(device)).argmax",
         "(functional_call(model, params, (images.to(device),)).argmax"),
        ("    optimizer = torch.optim.Adam(model.parameters(), lr=rate)\n",
         "    params = {name: x.detach().clone() for name, x in model.named_parameters()}\n"
         "    speed = {name: torch.zeros_like(x) for name, x in params.items()}\n"),
        (_WRAP, ""),
        (_WEIGHTS, "    hvd.broadcast_parameters(params, root_rank=0)\n"),
        ("    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n", ""),
        ("train(model, optimizer, train", "train(model, (rate, params, speed), train"),
        ("evaluate(model, test_loader", "evaluate(model, params, test_loader"),
    )(text[:start] + _FUNCTIONS + text[end:])  # fmt: skip


_TORCH = "import horovod.torch as hvd"
_FUNCTIONS = """    total = 0.0
    rate, params, speed = state

    def loss_of(params, images, labels):
        return cross_entropy(functional_call(model, params, (images,)), labels)

    for images, labels in loader:
        grads, loss = grad_and_value(loss_of)(params, images.to(device), labels.to(device))
        for name, grad in grads.items():
            speed[name] = 0.9 * speed[name] + hvd.allreduce(grad, name=name)
            params[name] = params[name] - rate * speed[name]
        total += loss.item()
"""
_WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # Step 4\n"
_WEIGHTS = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
_MEAN = "    return hvd.allreduce(torch.tensor(value), name=name).item()\n"
_BACKWARD = "        loss.backward()\n"
_STEP = "        optimizer.step()\n"
_SAMPLER = "DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)"
_DEVICE = 'torch.device("cuda" if use_cuda else "cpu")'
_SET_DEVICE = "        torch.cuda.set_device(hvd.local_rank())\n"
_PART = """class Part(torch.utils.data.Sampler):
    def __init__(self, count, seed):
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count // hvd.size()

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.count, generator=generator)
        return iter(order[hvd.rank() :: hvd.size()].tolist())


def main():
"""
_KERAS_WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer)  # Step 4\n"
_KERAS_BROADCAST = (
    "        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),  # Step 5\n"
)
_KERAS_MEAN = "        hvd.callbacks.MetricAverageCallback(),  # Step 9\n"
_KERAS_MINE = "    mine = slice(hvd.rank(), count, hvd.size())\n"
_AVERAGE = """class Average(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        for name in sorted(logs):
            logs[name] = sum(hvd.allgather_object(float(logs[name]))) / hvd.size()


def main():
"""
_DRAW = """    draws = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
    draws = draws.shuffle(len(train_images), seed=hvd.rank()).repeat().batch(args.batch_size)
    model.fit(
        draws,
        steps_per_epoch=len(train_images) // (args.batch_size * hvd.size()),
"""
_TAPE = "    tape = hvd.DistributedGradientTape(tape)  # Step 4\n"
_GRADIENTS = "    gradients = tape.gradient(loss, model.trainable_variables)\n"
_LATE = (
    "            if epoch == first_epoch and step == 0:\n"
    "                # Step 5: all go on with the weights and the optimizer state of rank 0; "
    "before\n"
    "                # the first batch the optimizer has none.\n"
    "                hvd.broadcast_variables(model.variables, root_rank=0)\n"
    "                hvd.broadcast_variables(optimizer.variables, root_rank=0)\n"
)
_EARLY = (
    "    optimizer.build(model.trainable_variables)\n"
    "    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)\n"
    "    met_target = 0\n"
)
_TF_MEAN = "    return float(hvd.allreduce(tf.constant(value)))\n"
_MINIMIZE = "    train_op = optimizer.minimize(loss, global_step=global_step)\n"
_HOOK = "        hvd.BroadcastGlobalVariablesHook(root_rank=0),  # Step 5\n"

_BY_SCRIPT: dict[str, dict[str, Callable[[str], str]]] = {
    "fashion_mnist_torch.py": {
        "star-import": _everywhere((_TORCH, "from horovod.torch import *"), ("hvd.", "")),
        "broadcast-object": _edits(
            (_WEIGHTS, "    model.load_state_dict(hvd.broadcast_object(model.state_dict(), 0))\n")),
        "device-by-name": _edits(
            (_DEVICE, 'torch.device(f"cuda:{hvd.local_rank()}" if use_cuda else "cpu")'),
            ("    if use_cuda:\n" + _SET_DEVICE, "")),
        "half-gradients": _edits(
            ("model.named_parameters())  # Step 4",
             "model.named_parameters(), compression=hvd.Compression.fp16)")),
        "clipped": _edits(
            (_STEP, "        optimizer.synchronize()\n"
                    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)\n"
                    "        with optimizer.skip_synchronize():\n            optimizer.step()\n")),
        "metrics-gathered": _edits(
            (_MEAN, "    return sum(hvd.allgather_object(value)) / hvd.size()\n")),
    },
    "mnist_torch.py": {
        "other-name": _everywhere((_TORCH, "import hvdlite.torch as h"), ("hvd.", "h.")),
        "gradients-by-hand": _edits(
            (_WRAP, ""),
            (_BACKWARD, _BACKWARD + "        for param in model.parameters():\n"
                                    "            hvd.allreduce_(param.grad, op=hvd.Average)\n")),
        "steps-by-hand": _edits(
            ("    optimizer = torch.optim.Adam(model.parameters(), lr=rate)\n", ""), (_WRAP, ""),
            ("    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n", ""),
            ("        optimizer.zero_grad()\n", "        model.zero_grad()\n"),
            (_STEP, "        with torch.no_grad():\n"
                    "            for param in model.parameters():\n"
                    "                param -= rate * hvd.allreduce(param.grad)\n"),
            ("def train(model, optimizer, loader", "def train(model, rate, loader"),
            ("train(model, optimizer, train_loader", "train(model, rate, train_loader")),
        "torch-func": _torch_func,
        "broadcast-by-hand": _edits(
            (_WEIGHTS, "    for param in model.parameters():\n"
                       "        hvd.broadcast_(param.data, root_rank=0)\n")),
        "own-sampler": _edits((_SAMPLER, "Part(len(train_set), args.seed)"),
                              ("def main():\n", _PART)),
        "smaller-batch": _edits(
            ("rate = args.base_lr * hvd.size()", "rate = args.base_lr"),
            ("        train_set, args.batch_size, sampler",
             "        train_set, args.batch_size // hvd.size(), sampler")),
        "metrics-summed-and-divided": _edits(
            (_MEAN, "    total = hvd.allreduce(torch.tensor(value), op=hvd.Sum)\n"
                    "    return total.item() / hvd.size()\n")),
        "device-by-variable": _edits(
            (_SET_DEVICE, "        import os\n\n        os.environ['CUDA_VISIBLE_DEVICES'] = "
                          "str(hvd.local_rank())\n")),
        "accelerator": _edits(
            ("use_cuda = torch.cuda.is_available()", "use_cuda = torch.accelerator.is_available()"),
            ('torch.device("cuda" if use_cuda else "cpu")',
             'torch.accelerator.current_accelerator() if use_cuda else torch.device("cpu")'),
            (_SET_DEVICE, "        torch.accelerator.set_device_index(hvd.local_rank())\n")),
    },
    "fashion_mnist_keras.py": {
        "full-name": _everywhere(
            ("import horovod.keras as hvd", "import horovod.keras"), ("hvd.", "horovod.keras.")),
    },
    "mnist_keras.py": {
        "weights-by-object": _edits(
            (_KERAS_BROADCAST, ""),
            ("    model.fit(\n", "    model.set_weights(hvd.broadcast_object(model.get_weights(), 0"
                                 "))\n    model.fit(\n")),
        "metrics-by-callback": _edits((_KERAS_MEAN, "        Average(),\n"),
                                      ("def main():\n", _AVERAGE)),
        "blocks": _edits(
            (_KERAS_MINE, "    part = count // hvd.size()\n"
                          "    mine = slice(hvd.rank() * part, (hvd.rank() + 1) * part)\n")),
        "random-draws": _edits(
            (_KERAS_MINE, "    mine = slice(0, count)\n"),
            ("    model.fit(\n        train_images,\n        train_labels,\n"
             "        batch_size=args.batch_size,\n", _DRAW)),
        "old-names": _everywhere(
            ("tf.config.set_visible_devices", "tf.config.experimental.set_visible_devices"),
            ("tf.config.list_physical_devices", "tf.config.experimental.list_physical_devices")),
    },
    "mnist_tensorflow.py": {
        "optimizer-wrapped": _edits(
            (_TAPE, ""),
            ("optimizer = tf.keras.optimizers.Adam(args.base_lr * hvd.size())",
             "optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(args.base_lr))")),
        "broadcast-first": _edits((_LATE, ""), ("    met_target = 0\n    for", _EARLY + "    for")),
        "steps-by-hand": _edits(
            ("    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))"
             "\n",
             "    for gradient, v in zip(gradients, model.trainable_variables, strict=True):\n"
             "        v.assign_sub(optimizer * gradient)\n"),
            ("    optimizer = tf.keras.optimizers.Adam(args.base_lr * hvd.size())  # Step 3\n",
             "    optimizer = tf.Variable(0.0, trainable=False)\n"),
            ("        optimizer.build(model.trainable_variables)\n", ""),
            ("model=model, optimizer=optimizer", "model=model"),
            ("optimizer.learning_rate = learning_rate(args, epoch + step / steps)",
             "optimizer.assign(learning_rate(args, epoch + step / steps))"),
            ("                hvd.broadcast_variables(optimizer.variables, root_rank=0)\n", "")),
        "gradients-by-hand": _edits(
            (_TAPE, ""),
            (_GRADIENTS, _GRADIENTS + "    gradients = [hvd.allreduce(g) for g in gradients]\n")),
        "metrics-gathered": _edits(
            (_TF_MEAN, "    return float(tf.reduce_mean(hvd.allgather(tf.constant([value]))))\n")),
    },
    "mnist_tensorflow1.py": {
        "clipped": _edits(
            (_MINIMIZE, "    pairs = optimizer.compute_gradients(loss)\n"
                        "    pairs = [(tf.clip_by_norm(g, 5.0), v) for g, v in pairs]\n"
                        "    train_op = optimizer.apply_gradients(pairs, global_step)\n")),
        "broadcast-op": _edits(
            (_HOOK, ""),
            ("    # Training.\n", "    broadcast = hvd.broadcast_global_variables(0)\n"
                                 "    # Training.\n"),
            ("        while not session.should_stop():\n",
             "        run_unseen(session, broadcast)\n"
             "        while not session.should_stop():\n")),
    },
}  # fmt: skip


def all_right() -> list[Right]:
    """The solutions as they are, and in other styles."""
    found = [Right("solution", script, lambda text: text) for script in ALL]
    for script in ALL:
        found += [
            Right(name, script, change) for name, change in _BY_SCRIPT.get(script.name, {}).items()
        ]
    return found
