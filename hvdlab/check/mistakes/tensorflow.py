"""Mistakes in the scripts of TensorFlow 2 and 1."""

from . import mistake

_DEVICE = "gpus[hvd.local_rank()] if gpus else []"
_LIST = "    config.gpu_options.visible_device_list = str(hvd.local_rank())\n"
_RATE = "return args.base_lr * (1 + (hvd.size() - 1) * warm)"
_RATE_1 = "rate = args.base_lr * (1 + (hvd.size() - 1) * tf.minimum(1.0, warm))"
_TAPE = "    tape = hvd.DistributedGradientTape(tape)  # Step 4\n"
_WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer)  # Step 4\n"
_BROADCAST = (
    "                hvd.broadcast_variables(model.variables, root_rank=0)\n"
    "                hvd.broadcast_variables(optimizer.variables, root_rank=0)\n"
)
_HOOK = "        hvd.BroadcastGlobalVariablesHook(root_rank=0),  # Step 5\n"
_SHUFFLE = "train_set.shuffle(len(train_images), seed=args.seed)"
_SHARD = "train_set.shard(hvd.size(), hvd.rank())"
_STEPS = "    steps = max(1, len(train_images) // (args.batch_size * hvd.size()))\n"
_ALL_STEPS = "    steps = max(1, len(train_images) // args.batch_size)\n"
_ORDER = "            order = order[hvd.rank() :: hvd.size()]  # Step 6\n"
_FIND = "    if hvd.rank() == 0 and args.resume and manager and manager.latest_checkpoint:\n"
_EPOCH = "    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)\n"
_MEAN = "    return float(hvd.allreduce(tf.constant(value)))\n"
_MEAN_1 = (
    "            metrics = run_unseen(session, mean_metrics, {own_metrics: metrics})  # Step 9\n"
)
_LOG_DIR = "log_dir = args.log_dir if hvd.rank() == 0 else None"


def _both(*edits: tuple[str, str]) -> dict:
    return {"mnist_tensorflow": list(edits), "mnist_tensorflow1": list(edits)}


MISTAKES = [
    mistake("no-init", "hvd.init() is missing", "init",
            **_both(("    hvd.init()  # Step 1\n", ""))),
    mistake("gpu-zero", "every rank uses GPU 0", "device",
            mnist_tensorflow=[(_DEVICE, "gpus[0] if gpus else []")],
            mnist_tensorflow1=[(_LIST, _LIST.replace("str(hvd.local_rank())", '"0"'))]),
    mistake("gpu-by-rank", "the GPU is chosen by rank, not by local rank", "device",
            mnist_tensorflow=[(_DEVICE, "gpus[hvd.rank()] if gpus else []")],
            mnist_tensorflow1=[(_LIST, _LIST.replace("local_rank", "rank"))]),
    mistake("gpu-unset", "each rank takes all GPUs", "device",
            mnist_tensorflow=[(_DEVICE, "gpus")], mnist_tensorflow1=[(_LIST, "")]),
    mistake("rate-unscaled", "the learning rate is not scaled", "rate",
            mnist_tensorflow=[(_RATE, "return args.base_lr * (1 + warm) / 2")],
            mnist_tensorflow1=[(_RATE_1, "rate = args.base_lr * (1 + tf.minimum(1.0, warm)) / 2")]),
    mistake("rate-twice", "the learning rate is scaled twice", "rate",
            mnist_tensorflow=[(_RATE, _RATE + " * hvd.size()")],
            mnist_tensorflow1=[(_RATE_1, _RATE_1 + " * hvd.size()")]),
    mistake("not-wrapped", "gradients are not averaged", "optimizer",
            mnist_tensorflow=[(_TAPE, "")], mnist_tensorflow1=[(_WRAP, "")]),
    mistake("summed", "the gradients are added up, and the rate is multiplied", "optimizer",
            mnist_tensorflow=[(_TAPE, _TAPE.replace("tape)", "tape, op=hvd.Sum)"))]),
    mistake("plain-step", "wrapped, but the gradients come from the plain one", "optimizer",
            mnist_tensorflow=[(_TAPE, _TAPE.replace("    tape =", "    wrapped =", 1))],
            mnist_tensorflow1=[(_WRAP, _WRAP.replace("    optimizer =", "    wrapped =", 1))]),
    mistake("no-broadcast", "nothing is broadcast", "broadcast",
            mnist_tensorflow=[(_BROADCAST, "                pass\n")]),
    mistake("no-broadcast", "nothing is broadcast, the number of the step neither",
            "broadcast resume", mnist_tensorflow1=[(_HOOK, "")]),
    mistake("broadcast-unbuilt", "broadcast before the model is built", "broadcast",
            mnist_tensorflow=[
                (_BROADCAST, "                pass\n"),
                ("            tf.keras.Input((28, 28)),\n", ""),
                ("    # Resume: step 8,", "    hvd.broadcast_variables(model.variables, 0)\n"
                 "    # Resume: step 8,")]),
    mistake("broadcast-by-rank-0", "rank 0 alone calls the broadcast", "broadcast",
            mnist_tensorflow=[("            if epoch == first_epoch and step == 0:\n",
                               "            if epoch == first_epoch and step == hvd.rank() * 99:\n")
                              ]),
    mistake("all-the-data", "no rank has a part of its own", "shard",
            mnist_tensorflow=[(_SHARD, "train_set")], mnist_tensorflow1=[(_ORDER, "")]),
    mistake("all-the-steps", "the number of steps is not divided", "shard",
            mnist_tensorflow=[(_SHARD, "train_set.repeat()"), (_STEPS, _ALL_STEPS)],
            mnist_tensorflow1=[(_ORDER, ""), (_STEPS, _ALL_STEPS)]),
    mistake("seed-by-rank", "each rank shuffles with a seed of its own", "shard",
            mnist_tensorflow=[(_SHUFFLE, _SHUFFLE.replace("args.seed", "args.seed + hvd.rank()"))],
            mnist_tensorflow1=[("args.seed, epoch)\n            order",
                                "args.seed + hvd.rank(), epoch)\n            order")]),
    mistake("same-order", "every epoch has the same order", "shard",
            mnist_tensorflow=[(_SHUFFLE, _SHUFFLE[:-1] + ", reshuffle_each_iteration=False)")],
            mnist_tensorflow1=[("args.seed, epoch)\n            order",
                                "args.seed, 0)\n            order")]),
    mistake("prints-everywhere", "every rank prints and logs", "rank0",
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
    mistake("saves-everywhere", "every rank writes the checkpoint", "rank0",
            mnist_tensorflow=[("            if manager:\n", "        if True:\n"
                               "            if manager:\n")],
            mnist_tensorflow1=[(" if args.log_dir and hvd.rank() == 0 else None",
                                " if args.log_dir else None")]),
    mistake("resume-everywhere", "every rank looks for the checkpoint itself", "resume",
            mnist_tensorflow=[(_FIND, _FIND.replace("hvd.rank() == 0 and ", "")), (_EPOCH, "")]),
    mistake("resume-untold", "rank 0 finds the epoch, the others don't learn it", "resume",
            mnist_tensorflow=[(_EPOCH, "")]),
    mistake("metrics-local", "the metrics are not averaged", "metrics",
            mnist_tensorflow=[(_MEAN, "    return value\n")], mnist_tensorflow1=[(_MEAN_1, "")]),
    mistake("metrics-by-rank-0", "rank 0 alone averages the metrics", "metrics",
            mnist_tensorflow=[(_MEAN, "    if hvd.rank() != 0:\n        return value\n" + _MEAN)],
            mnist_tensorflow1=[(_MEAN_1, "            if hvd.rank() == 0:\n    " + _MEAN_1)]),
    mistake("metrics-summed", "the metrics are summed", "metrics",
            mnist_tensorflow=[(_MEAN, _MEAN.replace("(value)", "(value), op=hvd.Sum"))],
            mnist_tensorflow1=[("hvd.allreduce(own_metrics)",
                                "hvd.allreduce(own_metrics, op=hvd.Sum)")]),
    mistake("no-warmup", "the full rate from the first step on", "schedule",
            mnist_tensorflow=[
                ("warm = min(1.0, progress / args.warmup_epochs) if args.warmup_epochs else 1.0",
                 "warm = 1.0")],
            mnist_tensorflow1=[("tf.minimum(1.0, warm))", "1.0) * (1 + 0 * warm)")]),
    mistake("all-threads", "each process uses all cores", "threads",
            mnist_tensorflow=[("threads = args.threads or share", "threads = args.threads or cores")
                              ],
            mnist_tensorflow1=[('"OMP_NUM_THREADS", share', '"OMP_NUM_THREADS", cores')]),
]  # fmt: skip
