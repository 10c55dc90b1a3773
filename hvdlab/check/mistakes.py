"""The library of common mistakes: each is a small edit of a converted script.

`hvdlab sabotage` puts one of them into a working script. The tests prove the check with the same
table: every mistake fails at its own step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .course import ALL, Script

Edits = list[tuple[str, str]]


@dataclass(frozen=True)
class Mistake:
    """One mistake: its name, what is wrong, the steps that it breaks, its edits in each script."""

    name: str
    what: str
    breaks: tuple[str, ...]
    edits: dict[str, Edits]

    def apply(self, script: Script, text: str) -> str:
        """The text with the mistake. Raises ValueError if the text has not what is replaced."""
        for old, new in self.edits[script.name]:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old.strip().splitlines()[0]!r} is not there once")
            text = text.replace(old, new)
        return text


def variants() -> list[tuple[Script, Mistake]]:
    """Every mistake in every script that it is made for, one framework after the other."""
    scripts = {script.name.removesuffix(".py"): script for script in ALL}
    return [
        (scripts[stem], each)
        for stems in (_TORCH, _LIGHTNING, _KERAS, _TENSORFLOW)
        for each in MISTAKES
        for stem in stems
        if scripts[stem].name in each.edits
    ]


def fitting(script: Script, path: Path) -> list[Mistake]:
    """The mistakes that can be put into this file."""
    text, found = path.read_text(), []
    for each in MISTAKES:
        if script.name in each.edits:
            try:
                each.apply(script, text)
            except ValueError:
                continue
            found.append(each)
    return found


def _mistake(name: str, what: str, breaks: str, **edits: Edits) -> Mistake:
    """A mistake from its edits, with the scripts named by their stems."""
    by_file = {f"{stem}.py": changes for stem, changes in edits.items()}
    return Mistake(name, what, tuple(breaks.split()), by_file)


def _in(stems: tuple[str, ...], *edits: tuple[str, str]) -> dict[str, Edits]:
    """The same edits for several scripts."""
    return dict.fromkeys(stems, list(edits))


_TORCH = ("fashion_mnist_torch", "mnist_torch")
_LIGHTNING = ("fashion_mnist_lightning",)
_KERAS = ("fashion_mnist_keras", "mnist_keras")
_TENSORFLOW = ("mnist_tensorflow", "mnist_tensorflow1")
_KERAS_AND_TENSORFLOW_2 = (*_KERAS, "mnist_tensorflow")
# These look for a checkpoint themselves; in the others a session does, or nobody.
_RESUMING = ("fashion_mnist_torch", "fashion_mnist_keras", "mnist_tensorflow")

# What the scripts of several frameworks have in common, and then each framework's own.
_GPUS = "gpus[hvd.local_rank()] if gpus else []"
_RATE = "rate = args.base_lr * hvd.size()"
_RATE_WITH_WARMUP = "args.base_lr * (1 + (hvd.size() - 1) * warm)"
_WARMUP = "warm = min(1.0, progress / args.warmup_epochs) if args.warmup_epochs else 1.0"
_FIND = "    if hvd.rank() == 0 and args.resume and "
_EPOCH = "    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)\n"
_LOG_DIR = "log_dir = args.log_dir if hvd.rank() == 0 else None"
_THREADS = "args.threads or share"
_WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer)  # Step 4\n"

_TORCH_DEVICE = "torch.cuda.set_device(hvd.local_rank())"
_TORCH_RATE_OPTION = '"--base-lr", type=float, default=0.001'
_TORCH_WRAP = (
    "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # Step 4\n"
)
_TORCH_WEIGHTS = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
_TORCH_STATE = "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
_TORCH_SAMPLER = "DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)"
_TORCH_SET_EPOCH = "        train_sampler.set_epoch(epoch)  # Step 6: a new order in every epoch\n"
_TORCH_MEAN = "    return hvd.allreduce(torch.tensor(value), name=name).item()\n"

_LIGHTNING_LOSS = "on_step=False, on_epoch=True, sync_dist=True"
_LIGHTNING_WARMUP = "factor = (1 + (hvd.size() - 1) * warm) / hvd.size()"
_LIGHTNING_RANK_0 = "        if trainer.is_global_zero:  # Step 7"

_KERAS_BROADCAST = "        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),"
_KERAS_MINE = "    mine = slice(hvd.rank(), count, hvd.size())\n"
_KERAS_RANK_0 = "    if hvd.rank() == 0:  # Step 7: one process prints and writes\n"
_KERAS_MEAN = "        hvd.callbacks.MetricAverageCallback(),"
_KERAS_WARMUP = "        hvd.callbacks.LearningRateWarmupCallback(rate, args.warmup_epochs),"
_KERAS_SCHEDULE = (
    "        hvd.callbacks.LearningRateScheduleCallback(\n"
    "            rate, lambda epoch: decay(args, epoch), start_epoch=args.warmup_epochs\n"
    "        ),\n"
)

_TF_TAPE = "    tape = hvd.DistributedGradientTape(tape)  # Step 4\n"
_TF_BROADCAST = (
    "                hvd.broadcast_variables(model.variables, root_rank=0)\n"
    "                hvd.broadcast_variables(optimizer.variables, root_rank=0)\n"
)
_TF_SHUFFLE = "train_set.shuffle(len(train_images), seed=args.seed)"
_TF_SHARD = "train_set.shard(hvd.size(), hvd.rank())"
_TF_STEPS = "    steps = max(1, len(train_images) // (args.batch_size * hvd.size()))\n"
_TF_ALL_STEPS = "    steps = max(1, len(train_images) // args.batch_size)\n"
_TF_MEAN = "    return float(hvd.allreduce(tf.constant(value)))\n"
_TF1_GPU_LIST = "    config.gpu_options.visible_device_list = str(hvd.local_rank())\n"
_TF1_RATE = "rate = args.base_lr * (1 + (hvd.size() - 1) * tf.minimum(1.0, warm))"
_TF1_HOOK = "        hvd.BroadcastGlobalVariablesHook(root_rank=0),  # Step 5\n"
_TF1_ORDER = "            order = order[hvd.rank() :: hvd.size()]  # Step 6\n"
_TF1_MEAN = (
    "            metrics = run_unseen(session, mean_metrics, {own_metrics: metrics})  # Step 9\n"
)

# A name may come more than once, where a framework needs other words or breaks other steps.
MISTAKES = [
    _mistake("no-init", "hvd.init() is missing", "init",
             **_in((*_TORCH, *_KERAS, *_TENSORFLOW), ("    hvd.init()  # Step 1\n", ""))),
    _mistake("gpu-zero", "every rank uses GPU 0", "device",
             **_in(_TORCH, (_TORCH_DEVICE, "torch.cuda.set_device(0)")),
             **_in(_KERAS_AND_TENSORFLOW_2, (_GPUS, "gpus[0] if gpus else []")),
             mnist_tensorflow1=[
                 (_TF1_GPU_LIST, _TF1_GPU_LIST.replace("str(hvd.local_rank())", '"0"'))]),
    _mistake("gpu-by-rank", "the GPU is chosen by rank, not by local rank", "device",
             **_in(_TORCH, (_TORCH_DEVICE, "torch.cuda.set_device(hvd.rank())")),
             **_in(_KERAS_AND_TENSORFLOW_2, (_GPUS, "gpus[hvd.rank()] if gpus else []")),
             mnist_tensorflow1=[(_TF1_GPU_LIST, _TF1_GPU_LIST.replace("local_rank", "rank"))]),
    _mistake("gpu-unset", "no GPU is chosen", "device",
             **_in(_TORCH, (f"    if use_cuda:\n        {_TORCH_DEVICE}\n", ""))),
    _mistake("gpu-unset", "each rank takes all GPUs", "device",
             **_in(_KERAS_AND_TENSORFLOW_2, (_GPUS, "gpus")),
             mnist_tensorflow1=[(_TF1_GPU_LIST, "")]),
    _mistake("rate-unscaled", "the learning rate is not scaled", "rate",
             **_in(("mnist_torch", *_LIGHTNING, *_KERAS), (_RATE, "rate = args.base_lr")),
             **_in(("fashion_mnist_torch", "mnist_tensorflow"),
                   (_RATE_WITH_WARMUP, "args.base_lr * (1 + warm) / 2")),
             mnist_tensorflow1=[
                 (_TF1_RATE, "rate = args.base_lr * (1 + tf.minimum(1.0, warm)) / 2")]),
    _mistake("rate-twice", "the learning rate is scaled twice", "rate",
             **_in(("mnist_torch", *_LIGHTNING, *_KERAS), (_RATE, f"{_RATE} * hvd.size()")),
             **_in(("fashion_mnist_torch", "mnist_tensorflow"),
                   (_RATE_WITH_WARMUP, f"{_RATE_WITH_WARMUP} * hvd.size()")),
             mnist_tensorflow1=[(_TF1_RATE, f"{_TF1_RATE} * hvd.size()")]),
    _mistake("rate-of-host", "the rate is multiplied by the ranks of the host", "rate",
             mnist_torch=[(_RATE, "rate = args.base_lr * hvd.local_size()")]),
    _mistake("rate-default", "the default rate is that of two ranks already", "rate",
             mnist_torch=[(_TORCH_RATE_OPTION, _TORCH_RATE_OPTION.replace("0.001", "0.002"))]),
    _mistake("not-wrapped", "the optimizer is not wrapped", "optimizer",
             **_in(_TORCH, (_TORCH_WRAP, "")), **_in(_KERAS, (_WRAP, ""))),
    _mistake("not-wrapped", "gradients are not averaged", "optimizer",
             mnist_tensorflow=[(_TF_TAPE, "")], mnist_tensorflow1=[(_WRAP, "")]),
    _mistake("plain-step", "the optimizer is wrapped, but the plain one takes the step",
             "optimizer",
             **_in(_TORCH, (_TORCH_WRAP, _TORCH_WRAP.replace("    optimizer =", "    wrapped =")))),
    _mistake("plain-step", "the optimizer is wrapped, but the plain one is compiled", "optimizer",
             **_in(_KERAS, (_WRAP, _WRAP.replace("    optimizer =", "    wrapped =")))),
    _mistake("summed", "the gradients are added up, and the rate is multiplied", "optimizer",
             **_in(_TORCH, (_TORCH_WRAP, _TORCH_WRAP.replace("s())", "s(), op=hvd.Sum)"))),
             mnist_keras=[(_WRAP, _WRAP.replace("r)", "r, op=hvd.Sum)"))],
             mnist_tensorflow=[(_TF_TAPE, _TF_TAPE.replace("tape)", "tape, op=hvd.Sum)"))]),
    _mistake("plain-step", "wrapped, but the gradients come from the plain one", "optimizer",
             mnist_tensorflow=[(_TF_TAPE, _TF_TAPE.replace("    tape =", "    wrapped ="))],
             mnist_tensorflow1=[(_WRAP, _WRAP.replace("    optimizer =", "    wrapped ="))]),
    _mistake("averaged-twice", "the gradients are divided by size() once more", "optimizer",
             mnist_torch=[("        loss.backward()\n",
                           "        loss.backward()\n        for param in model.parameters():\n"
                           "            param.grad /= hvd.size()\n")]),
    _mistake("no-broadcast", "nothing is broadcast", "broadcast",
             **_in(_TORCH, (_TORCH_WEIGHTS, ""), (_TORCH_STATE, "")),
             **_in(_KERAS, (_KERAS_BROADCAST, "")),
             mnist_tensorflow=[(_TF_BROADCAST, "                pass\n")]),
    _mistake("no-broadcast", "nothing is broadcast, the number of the step neither",
             "broadcast resume", mnist_tensorflow1=[(_TF1_HOOK, "")]),
    _mistake("broadcast-unbuilt", "broadcast before the model is built", "broadcast",
             mnist_tensorflow=[
                 (_TF_BROADCAST, "                pass\n"),
                 ("            tf.keras.Input((28, 28)),\n", ""),
                 ("    # Resume: step 8,", "    hvd.broadcast_variables(model.variables, 0)\n"
                  "    # Resume: step 8,")]),
    _mistake("no-state-broadcast", "the optimizer's state is not broadcast", "broadcast",
             fashion_mnist_torch=[(_TORCH_STATE, "")]),
    _mistake("broadcast-too-early", "broadcast, then the checkpoint is loaded on rank 0",
             "broadcast",
             fashion_mnist_torch=[(_TORCH_WEIGHTS, ""), (_TORCH_STATE, ""),
                                  (_TORCH_WRAP, _TORCH_WRAP + _TORCH_WEIGHTS + _TORCH_STATE)]),
    _mistake("root-without-checkpoint", "rank 1 is the root, and rank 0 has the checkpoint",
             "broadcast",
             fashion_mnist_torch=[(each, each.replace("root_rank=0", "root_rank=1"))
                                  for each in (_TORCH_WEIGHTS, _TORCH_STATE)]),
    _mistake("broadcast-by-rank-0", "rank 0 alone calls the broadcast", "broadcast",
             **_in(_TORCH, (_TORCH_WEIGHTS, "    if hvd.rank() == 0:\n    " + _TORCH_WEIGHTS)),
             mnist_tensorflow=[
                 ("            if epoch == first_epoch and step == 0:\n",
                  "            if epoch == first_epoch and step == hvd.rank() * 99:\n")]),
    _mistake("all-the-data", "each rank reads all images", "shard",
             **_in(_TORCH,
                   (_TORCH_SAMPLER, "DistributedSampler(train_set, 1, 0, seed=args.seed)")),
             **_in(_KERAS, (_KERAS_MINE, "    mine = slice(None)\n"))),
    _mistake("all-the-data", "no rank has a part of its own", "shard",
             mnist_tensorflow=[(_TF_SHARD, "train_set")], mnist_tensorflow1=[(_TF1_ORDER, "")]),
    _mistake("all-the-steps", "the number of steps is not divided", "shard",
             mnist_tensorflow=[(_TF_SHARD, "train_set.repeat()"), (_TF_STEPS, _TF_ALL_STEPS)],
             mnist_tensorflow1=[(_TF1_ORDER, ""), (_TF_STEPS, _TF_ALL_STEPS)]),
    _mistake("no-set-epoch", "set_epoch is forgotten", "shard",
             **_in(_TORCH, (_TORCH_SET_EPOCH, ""))),
    _mistake("seed-by-rank", "each rank shuffles with a seed of its own", "shard",
             **_in(_TORCH, (_TORCH_SAMPLER,
                            _TORCH_SAMPLER.replace("args.seed", "args.seed + hvd.rank()"))),
             mnist_tensorflow=[
                 (_TF_SHUFFLE, _TF_SHUFFLE.replace("args.seed", "args.seed + hvd.rank()"))],
             mnist_tensorflow1=[("args.seed, epoch)\n            order",
                                 "args.seed + hvd.rank(), epoch)\n            order")]),
    _mistake("same-order", "every epoch has the same order", "shard",
             mnist_tensorflow=[
                 (_TF_SHUFFLE, _TF_SHUFFLE[:-1] + ", reshuffle_each_iteration=False)")],
             mnist_tensorflow1=[("args.seed, epoch)\n            order",
                                 "args.seed, 0)\n            order")]),
    _mistake("same-part", "all ranks read the same part", "shard",
             **_in(_TORCH, (_TORCH_SAMPLER, _TORCH_SAMPLER.replace("hvd.rank()", "0"))),
             **_in(_KERAS, (_KERAS_MINE, "    mine = slice(0, count, hvd.size())\n"))),
    _mistake("part-by-local-rank", "the part is chosen by local rank", "shard",
             **_in(_TORCH,
                   (_TORCH_SAMPLER, _TORCH_SAMPLER.replace("hvd.rank()", "hvd.local_rank()")))),
    _mistake("part-lost", "a part of the images is read by nobody", "shard",
             **_in(_KERAS,
                   (_KERAS_MINE, "    mine = slice(hvd.rank(), count, 2 * hvd.size())\n"))),
    _mistake("uneven-steps", "rank 1 takes fewer steps", "shard",
             fashion_mnist_torch=[
                 ("    for step, (images, labels) in enumerate(loader):\n",
                  "    for step, (images, labels) in enumerate(loader):\n"
                  "        if step == 6 and hvd.rank() == 1:\n            break\n")]),
    _mistake("prints-everywhere", "every rank prints and logs", "rank0",
             fashion_mnist_torch=[
                 ("        if hvd.rank() == 0:  # Step 7: one process prints and writes\n"
                  "            report(args, record)\n            if checkpoint:\n",
                  "        report(args, record)\n        if hvd.rank() == 0:\n"
                  "            if checkpoint:\n")],
             mnist_torch=[
                 (_LOG_DIR, "log_dir = args.log_dir"),
                 ("        if hvd.rank() == 0:  # Step 7\n            log.add(",
                  "        if True:\n            log.add(")],
             mnist_tensorflow=[
                 (_LOG_DIR, "log_dir = args.log_dir"),
                 ("        if hvd.rank() == 0:  # Step 7\n            log.add("
                  "epoch + 1, seconds, loss, accuracy)\n",
                  "        log.add(epoch + 1, seconds, loss, accuracy)\n"
                  "        if hvd.rank() == 0:  # Step 7\n")],
             mnist_tensorflow1=[
                 (_LOG_DIR, "log_dir = args.log_dir"),
                 ("            if hvd.rank() == 0:  # Step 7\n                log.add(",
                  "            if True:\n                log.add(")]),
    _mistake("prints-everywhere", "every rank prints and writes", "rank0",
             **_in(_LIGHTNING,
                   (f"{_LIGHTNING_RANK_0}: one process prints and writes\n", "        if True:\n"),
                   (f"{_LIGHTNING_RANK_0}\n", "        if True:\n"))),
    _mistake("prints-everywhere", "every rank prints", "rank0",
             fashion_mnist_keras=[("        verbose=0,\n", "        verbose=2,\n")],
             mnist_keras=[("verbose=2 if hvd.rank() == 0 else 0,  # Step 7", "verbose=2,")]),
    _mistake("saves-everywhere", "every rank writes the checkpoint", "rank0",
             fashion_mnist_torch=[
                 ("            if checkpoint:\n                save_checkpoint(",
                  "        if True:\n            if checkpoint:\n"
                  "                save_checkpoint(")],
             mnist_torch=[("    if hvd.rank() == 0 and args.log_dir:  # Step 7\n",
                           "    if args.log_dir:\n")],
             fashion_mnist_keras=[("        if args.log_dir:\n            callbacks.append(Save",
                                   "    if True:\n        if args.log_dir:\n"
                                   "            callbacks.append(Save")],
             mnist_keras=[("        if args.log_dir:\n            path",
                           "    if True:\n        if args.log_dir:\n            path")],
             mnist_tensorflow=[("            if manager:\n", "        if True:\n"
                                "            if manager:\n")],
             mnist_tensorflow1=[(" if args.log_dir and hvd.rank() == 0 else None",
                                 " if args.log_dir else None")]),
    _mistake("resume-everywhere", "every rank looks for the checkpoint itself", "resume",
             **_in(_RESUMING, (_FIND, "    if args.resume and "), (_EPOCH, ""))),
    _mistake("resume-untold", "rank 0 finds the epoch, the others don't learn it", "resume",
             **_in(_RESUMING, (_EPOCH, ""))),
    _mistake("resume-by-rank-0", "rank 0 alone broadcasts the epoch", "resume",
             fashion_mnist_torch=[(_EPOCH, "    if hvd.rank() == 0:\n    " + _EPOCH)]),
    _mistake("metrics-local", "the metrics are not averaged", "metrics",
             **_in(_TORCH, (_TORCH_MEAN, "    return value\n")),
             **_in(_KERAS, (_KERAS_MEAN, "")),
             mnist_tensorflow=[(_TF_MEAN, "    return value\n")],
             mnist_tensorflow1=[(_TF1_MEAN, "")]),
    _mistake("metrics-local", "the loss is reported as rank 0 has it", "metrics",
             **_in(_LIGHTNING, (_LIGHTNING_LOSS, "on_step=False, on_epoch=True"))),
    _mistake("metrics-too-late", "the metrics are averaged after they were reported", "metrics",
             **_in(_KERAS, (_KERAS_MEAN, ""),
                   ("    model.fit(\n",
                    "    callbacks.append(hvd.callbacks.MetricAverageCallback())\n"
                    "    model.fit(\n"))),
    _mistake("metrics-by-rank-0", "rank 0 alone averages the metrics", "metrics",
             **_in(_TORCH,
                   (_TORCH_MEAN, "    if hvd.rank() != 0:\n        return value\n" + _TORCH_MEAN)),
             **_in(_KERAS, (_KERAS_MEAN, ""),
                   (_KERAS_RANK_0, _KERAS_RANK_0 + "        callbacks.insert(1, "
                                                   "hvd.callbacks.MetricAverageCallback())\n")),
             mnist_tensorflow=[
                 (_TF_MEAN, "    if hvd.rank() != 0:\n        return value\n" + _TF_MEAN)],
             mnist_tensorflow1=[(_TF1_MEAN, "            if hvd.rank() == 0:\n    " + _TF1_MEAN)]),
    _mistake("metrics-summed", "the metrics are summed", "metrics",
             **_in(_TORCH,
                   (_TORCH_MEAN, _TORCH_MEAN.replace("name=name", "name=name, op=hvd.Sum"))),
             mnist_tensorflow=[(_TF_MEAN, _TF_MEAN.replace("(value)", "(value), op=hvd.Sum"))],
             mnist_tensorflow1=[("hvd.allreduce(own_metrics)",
                                 "hvd.allreduce(own_metrics, op=hvd.Sum)")]),
    _mistake("no-warmup", "the full rate from the first step on", "schedule",
             **_in(("fashion_mnist_torch", "mnist_tensorflow"), (_WARMUP, "warm = 1.0")),
             **_in(_KERAS, (_KERAS_WARMUP, "")),
             mnist_tensorflow1=[("tf.minimum(1.0, warm))", "1.0) * (1 + 0 * warm)")]),
    _mistake("no-warmup", "the rate is that of all ranks from the first step on", "schedule",
             **_in(_LIGHTNING, (_LIGHTNING_WARMUP, "factor = 1.0"))),
    _mistake("rate-jumps", "the rate is multiplied from the second epoch on", "schedule",
             fashion_mnist_torch=[
                 (_RATE_WITH_WARMUP, "args.base_lr * (hvd.size() if progress >= 1 else 1)")]),
    _mistake("schedule-unscaled", "after the warm-up the rate is that of one process", "schedule",
             fashion_mnist_keras=[("            rate, lambda epoch",
                                   "            args.base_lr, lambda epoch")]),
    _mistake("schedule-lost", "the rate does not fall any more", "schedule",
             fashion_mnist_torch=[("            rate *= 0.1\n", "            rate *= 1.0\n")],
             fashion_mnist_keras=[(_KERAS_SCHEDULE, "")]),
    _mistake("all-threads", "each process uses all cores", "threads",
             **_in(("fashion_mnist_torch", *_KERAS_AND_TENSORFLOW_2),
                   (_THREADS, "args.threads or cores")),
             mnist_torch=[("    torch.set_num_threads(args.threads)  # Step 11: each process has "
                           "its own\n", "")],
             mnist_tensorflow1=[('"OMP_NUM_THREADS", share', '"OMP_NUM_THREADS", cores')]),
]  # fmt: skip
