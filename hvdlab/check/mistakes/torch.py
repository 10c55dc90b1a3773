"""Mistakes in the scripts of PyTorch."""

from . import mistake

_WRAP = "    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # Step 4\n"
_WEIGHTS = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
_STATE = "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
_SAMPLER = "DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=args.seed)"
_SET_EPOCH = "        train_sampler.set_epoch(epoch)  # Step 6: a new order in every epoch\n"
_DEVICE = "torch.cuda.set_device(hvd.local_rank())"
_MEAN = "    return hvd.allreduce(torch.tensor(value), name=name).item()\n"
_EPOCH = "    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)\n"
_RATE = "rate = args.base_lr * (1 + (hvd.size() - 1) * warm)"
_FIND = "    if hvd.rank() == 0 and args.resume and checkpoint and checkpoint.exists():\n"
_DEFAULT = '"--base-lr", type=float, default=0.001'
_LOG_DIR = "log_dir = args.log_dir if hvd.rank() == 0 else None"


def _both(*edits: tuple[str, str]) -> dict:
    return {"fashion_mnist_torch": list(edits), "mnist_torch": list(edits)}


MISTAKES = [
    mistake("no-init", "hvd.init() is missing", "init",
            **_both(("    hvd.init()  # Step 1\n", ""))),
    mistake("gpu-zero", "every rank uses GPU 0", "device",
            **_both((_DEVICE, "torch.cuda.set_device(0)"))),
    mistake("gpu-by-rank", "the GPU is chosen by rank, not by local rank", "device",
            **_both((_DEVICE, "torch.cuda.set_device(hvd.rank())"))),
    mistake("gpu-unset", "no GPU is chosen", "device",
            **_both((f"    if use_cuda:\n        {_DEVICE}\n", ""))),
    mistake("rate-unscaled", "the learning rate is not scaled", "rate",
            fashion_mnist_torch=[(_RATE, "rate = args.base_lr * (1 + warm) / 2")],
            mnist_torch=[("rate = args.base_lr * hvd.size()", "rate = args.base_lr")]),
    mistake("rate-twice", "the learning rate is scaled twice", "rate",
            fashion_mnist_torch=[(_RATE, f"{_RATE} * hvd.size()")],
            mnist_torch=[("rate = args.base_lr * hvd.size()",
                          "rate = args.base_lr * hvd.size() * hvd.size()")]),
    mistake("rate-of-host", "the rate is multiplied by the ranks of the host", "rate",
            mnist_torch=[("rate = args.base_lr * hvd.size()",
                          "rate = args.base_lr * hvd.local_size()")]),
    mistake("rate-default", "the default rate is that of two ranks already", "rate",
            mnist_torch=[(_DEFAULT, _DEFAULT.replace("0.001", "0.002"))]),
    mistake("not-wrapped", "the optimizer is not wrapped", "optimizer", **_both((_WRAP, ""))),
    mistake("plain-step", "the optimizer is wrapped, but the plain one takes the step",
            "optimizer", **_both((_WRAP, _WRAP.replace("    optimizer =", "    wrapped =", 1)))),
    mistake("summed", "the gradients are added up, and the rate is multiplied", "optimizer",
            **_both((_WRAP, _WRAP.replace("s())", "s(), op=hvd.Sum)")))),
    mistake("averaged-twice", "the gradients are divided by size() once more", "optimizer",
            mnist_torch=[("        loss.backward()\n",
                          "        loss.backward()\n        for param in model.parameters():\n"
                          "            param.grad /= hvd.size()\n")]),
    mistake("no-broadcast", "nothing is broadcast", "broadcast",
            **_both((_WEIGHTS, ""), (_STATE, ""))),
    mistake("no-state-broadcast", "the optimizer's state is not broadcast", "broadcast",
            fashion_mnist_torch=[(_STATE, "")]),
    mistake("broadcast-too-early", "broadcast, then the checkpoint is loaded on rank 0",
            "broadcast",
            fashion_mnist_torch=[(_WEIGHTS, ""), (_STATE, ""),
                                 (_WRAP, _WRAP + _WEIGHTS + _STATE)]),
    mistake("root-without-checkpoint", "rank 1 is the root, and rank 0 has the checkpoint",
            "broadcast",
            fashion_mnist_torch=[(each, each.replace("root_rank=0", "root_rank=1"))
                                 for each in (_WEIGHTS, _STATE)]),
    mistake("broadcast-by-rank-0", "rank 0 alone calls the broadcast", "broadcast",
            **_both((_WEIGHTS, "    if hvd.rank() == 0:\n    " + _WEIGHTS))),
    mistake("all-the-data", "each rank reads all images", "shard",
            **_both((_SAMPLER, "DistributedSampler(train_set, 1, 0, seed=args.seed)"))),
    mistake("no-set-epoch", "set_epoch is forgotten", "shard", **_both((_SET_EPOCH, ""))),
    mistake("seed-by-rank", "each rank shuffles with a seed of its own", "shard",
            **_both((_SAMPLER, _SAMPLER.replace("args.seed", "args.seed + hvd.rank()")))),
    mistake("same-part", "all ranks read the same part", "shard",
            **_both((_SAMPLER, _SAMPLER.replace("hvd.rank()", "0")))),
    mistake("part-by-local-rank", "the part is chosen by local rank", "shard",
            **_both((_SAMPLER, _SAMPLER.replace("hvd.rank()", "hvd.local_rank()")))),
    mistake("uneven-steps", "rank 1 takes fewer steps", "shard",
            fashion_mnist_torch=[
                ("    for step, (images, labels) in enumerate(loader):\n",
                 "    for step, (images, labels) in enumerate(loader):\n"
                 "        if step == 6 and hvd.rank() == 1:\n            break\n")]),
    mistake("prints-everywhere", "every rank prints and logs", "rank0",
            fashion_mnist_torch=[
                ("        if hvd.rank() == 0:  # Step 7: one process prints and writes\n"
                 "            report(args, record)\n            if checkpoint:\n",
                 "        report(args, record)\n        if hvd.rank() == 0:\n"
                 "            if checkpoint:\n")],
            mnist_torch=[
                (_LOG_DIR, "log_dir = args.log_dir"),
                ("        if hvd.rank() == 0:  # Step 7\n            log.add(",
                 "        if True:\n            log.add(")]),
    mistake("saves-everywhere", "every rank writes the checkpoint", "rank0",
            fashion_mnist_torch=[
                ("            if checkpoint:\n                save_checkpoint(",
                 "        if True:\n            if checkpoint:\n                save_checkpoint(")],
            mnist_torch=[("    if hvd.rank() == 0 and args.log_dir:  # Step 7\n",
                          "    if args.log_dir:\n")]),
    mistake("resume-everywhere", "every rank looks for the checkpoint itself", "resume",
            fashion_mnist_torch=[(_FIND, _FIND.replace("hvd.rank() == 0 and ", "")),
                                 (_EPOCH, "")]),
    mistake("resume-untold", "rank 0 finds the epoch, the others don't learn it", "resume",
            fashion_mnist_torch=[(_EPOCH, "")]),
    mistake("resume-by-rank-0", "rank 0 alone broadcasts the epoch", "resume",
            fashion_mnist_torch=[(_EPOCH, "    if hvd.rank() == 0:\n    " + _EPOCH)]),
    mistake("metrics-local", "the metrics are not averaged", "metrics",
            **_both((_MEAN, "    return value\n"))),
    mistake("metrics-by-rank-0", "rank 0 alone averages the metrics", "metrics",
            **_both((_MEAN, "    if hvd.rank() != 0:\n        return value\n" + _MEAN))),
    mistake("metrics-summed", "the metrics are summed", "metrics",
            **_both((_MEAN, _MEAN.replace("name=name", "name=name, op=hvd.Sum")))),
    mistake("no-warmup", "the full rate from the first step on", "schedule",
            fashion_mnist_torch=[
                ("warm = min(1.0, progress / args.warmup_epochs) if args.warmup_epochs else 1.0",
                 "warm = 1.0")]),
    mistake("rate-jumps", "the rate is multiplied from the second epoch on", "schedule",
            fashion_mnist_torch=[
                (_RATE, "rate = args.base_lr * (hvd.size() if progress >= 1 else 1)")]),
    mistake("schedule-lost", "the rate does not fall any more", "schedule",
            fashion_mnist_torch=[("            rate *= 0.1\n", "            rate *= 1.0\n")]),
    mistake("all-threads", "each process uses all cores", "threads",
            fashion_mnist_torch=[("args.threads or share)", "args.threads or cores)")],
            mnist_torch=[("    torch.set_num_threads(args.threads)  # Step 11: each process has "
                          "its own\n", "")]),
]  # fmt: skip
