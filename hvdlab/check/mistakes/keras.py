"""Mistakes in the scripts of Keras."""

from . import mistake

_DEVICE = "gpus[hvd.local_rank()] if gpus else []"
_RATE = "rate = args.base_lr * hvd.size()  # Step 3"
_WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer)  # Step 4\n"
_MINE = "    mine = slice(hvd.rank(), count, hvd.size())\n"
_MEAN = "        hvd.callbacks.MetricAverageCallback(),"
_WARM = "        hvd.callbacks.LearningRateWarmupCallback(rate, args.warmup_epochs),"
_FIND = "    if hvd.rank() == 0 and args.resume and checkpoints:\n"
_EPOCH = "    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)\n"
_SCHEDULE = (
    "        hvd.callbacks.LearningRateScheduleCallback(\n"
    "            rate, lambda epoch: decay(args, epoch), start_epoch=args.warmup_epochs\n"
    "        ),\n"
)
_BROADCAST = "        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),"
_REPORT = "        callbacks.append(Report(EpochLog(args.log_dir, go_on=args.resume, **facts)))\n"
_STEP7 = "    if hvd.rank() == 0:  # Step 7: one process prints and writes\n"


def _both(*edits: tuple[str, str]) -> dict:
    return {"fashion_mnist_keras": list(edits), "mnist_keras": list(edits)}


MISTAKES = [
    mistake("no-init", "hvd.init() is missing", "init",
            **_both(("    hvd.init()  # Step 1\n", ""))),
    mistake("gpu-zero", "every rank uses GPU 0", "device",
            **_both((_DEVICE, "gpus[0] if gpus else []"))),
    mistake("gpu-by-rank", "the GPU is chosen by rank, not by local rank", "device",
            **_both((_DEVICE, "gpus[hvd.rank()] if gpus else []"))),
    mistake("gpu-unset", "each rank takes all GPUs", "device", **_both((_DEVICE, "gpus"))),
    mistake("rate-unscaled", "the learning rate is not scaled", "rate",
            **_both((_RATE, "rate = args.base_lr"))),
    mistake("rate-twice", "the learning rate is scaled twice", "rate",
            **_both((_RATE, "rate = args.base_lr * hvd.size() * hvd.size()"))),
    mistake("not-wrapped", "the optimizer is not wrapped", "optimizer", **_both((_WRAP, ""))),
    mistake("plain-step", "the optimizer is wrapped, but the plain one is compiled", "optimizer",
            **_both((_WRAP, _WRAP.replace("    optimizer =", "    wrapped =", 1)))),
    mistake("summed", "the gradients are added up, and the rate is multiplied", "optimizer",
            mnist_keras=[(_WRAP, _WRAP.replace("r)", "r, op=hvd.Sum)"))]),
    mistake("no-broadcast", "nothing is broadcast", "broadcast", **_both((_BROADCAST, ""))),
    mistake("all-the-data", "each rank reads all images", "shard",
            **_both((_MINE, "    mine = slice(None)\n"))),
    mistake("same-part", "all ranks read the same part", "shard",
            **_both((_MINE, "    mine = slice(0, count, hvd.size())\n"))),
    mistake("part-lost", "a part of the images is read by nobody", "shard",
            **_both((_MINE, "    mine = slice(hvd.rank(), count, 2 * hvd.size())\n"))),
    mistake("prints-everywhere", "every rank prints", "rank0",
            fashion_mnist_keras=[("        verbose=0,\n", "        verbose=2,\n")],
            mnist_keras=[("verbose=2 if hvd.rank() == 0 else 0,  # Step 7", "verbose=2,")]),
    mistake("saves-everywhere", "every rank writes the checkpoint", "rank0",
            fashion_mnist_keras=[("        if args.log_dir:\n            callbacks.append(Save",
                                  "    if True:\n        if args.log_dir:\n"
                                  "            callbacks.append(Save")],
            mnist_keras=[("        if args.log_dir:\n            path",
                          "    if True:\n        if args.log_dir:\n            path")]),
    mistake("resume-everywhere", "every rank looks for the checkpoint itself", "resume",
            fashion_mnist_keras=[(_FIND, _FIND.replace("hvd.rank() == 0 and ", "")),
                                 (_EPOCH, "")]),
    mistake("resume-untold", "rank 0 finds the epoch, the others don't learn it", "resume",
            fashion_mnist_keras=[(_EPOCH, "")]),
    mistake("metrics-local", "the metrics are not averaged", "metrics", **_both((_MEAN, ""))),
    mistake("metrics-too-late", "the metrics are averaged after they were reported", "metrics",
            **_both((_MEAN, ""),
                    ("    model.fit(\n",
                     "    callbacks.append(hvd.callbacks.MetricAverageCallback())\n"
                     "    model.fit(\n"))),
    mistake("metrics-by-rank-0", "rank 0 alone averages the metrics", "metrics",
            **_both((_MEAN, ""),
                    (_STEP7, _STEP7 + "        callbacks.insert(1, "
                                      "hvd.callbacks.MetricAverageCallback())\n"))),
    mistake("no-warmup", "the full rate from the first step on", "schedule",
            **_both((_WARM, ""))),
    mistake("schedule-unscaled", "after the warm-up the rate is that of one process", "schedule",
            fashion_mnist_keras=[("            rate, lambda epoch", "            args.base_lr, "
                                  "lambda epoch")]),
    mistake("schedule-lost", "the rate does not fall any more", "schedule",
            fashion_mnist_keras=[(_SCHEDULE, "")]),
    mistake("all-threads", "each process uses all cores", "threads",
            **_both(("threads = args.threads or share", "threads = args.threads or cores"))),
]  # fmt: skip
