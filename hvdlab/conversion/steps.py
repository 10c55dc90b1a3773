"""What the checks of labs 05 to 07 state of each conversion step, from what the ranks did."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ..exercise import Check
from .observe import Seen, chosen_gpus, together
from .script import Script


def initialized(check: Check, seen: Sequence[Seen]) -> None:
    """Step 1: each process knows its number and how many there are."""
    told = [(one.rank, one.size) for one in seen]
    check.that(
        told == [(rank, len(seen)) for rank in range(len(seen))],
        f"the {len(seen)} processes are rank 0 to {len(seen) - 1} of {len(seen)}",
        f"They say {told}.",
        "hvd.init() must have been called before main() ends.",
    )


def own_gpu(check: Check, script: Script) -> None:
    """Step 2: each process of a host takes a GPU of its own."""
    chosen = chosen_gpus(script)
    told = ", ".join(f"rank {rank} takes GPU {gpu}" for rank, (_, gpu) in enumerate(chosen))
    check.that(
        len({gpu for _, gpu in chosen[:2]}) == 2,
        "the two processes of the first host take different GPUs",
        f"There {told}.",
        "choose by a number that differs between the processes of a host.",
    )
    check.that(
        all(gpu == local for local, gpu in chosen),
        "so do those of the second host, where the numbers begin at 0 again",
        f"There {told}; but a host with two GPUs has only the numbers 0 and 1.",
        "ranks 2 and 3 run on the second host.",
    )


def scaled_rate(check: Check, seen: Sequence[Seen], base: float) -> None:
    """Step 3: the learning rate is that of one process times the number of processes."""
    for rank, one in enumerate(seen):
        check.that(
            np.isclose(max(one.rates), base * len(seen), rtol=1e-4),
            f"rank {rank} trains with {base * len(seen):g}, {len(seen)} times the rate of one",
            f"Its largest rate is {max(one.rates):g}.",
            "the rate of one process times the number of processes, once.",
        )


def same_update(check: Check, seen: Sequence[Seen], tolerance: float = 1e-3) -> None:
    """Step 4: in the first step all ranks change their weights by the same."""
    first, second = (np.array(one.update) for one in seen[:2])
    check.that(
        np.allclose(first, second, rtol=tolerance, atol=tolerance * abs(first).max()),
        "both ranks change their weights by the same in the first step",
        f"The last bias begins to change by {np.round(first[:3], 5)} on rank 0, and by "
        f"{np.round(second[:3], 5)} on rank 1.",
        "is what you have wrapped also what is used?",
    )


def same_weights(check: Check, seen: Sequence[Seen], first: int) -> None:
    """Step 5: the ranks have the same weights before step `first` (from 0), and to the end."""
    zero, one = seen[:2]
    when = "before the first step" if first == 0 else "from the second step on"
    check.that(
        zero.before[first] == one.before[first],
        f"the ranks have the same weights {when}",
        f"Their digests are {zero.before[first]} and {one.before[first]}.",
        "broadcast when the model is there, on all ranks.",
    )
    check.that(
        zero.after[-1] == one.after[-1],
        f"and still after {len(zero.after)} steps",
        f"After the last they are {zero.after[-1]} and {one.after[-1]}.",
        "is the optimizer's state the same, too? Is step 4 done?",
    )


def own_images(check: Check, seen: Sequence[Seen], images: int) -> None:
    """Step 6: the ranks share the images, without a rest, and read none of them twice."""
    share = images // len(seen)
    read = [len(set(one.epochs[0])) for one in seen]
    check.that(
        read == [share] * len(seen),
        f"each rank reads {share} of the {images} images",
        f"They read {read}.",
    )
    every, twice = together([one.epochs[0] for one in seen])
    check.that(
        every == share * len(seen) and not twice,
        f"together they read {share * len(seen)}, and no image on both ranks",
        f"They read {every} different images, and {twice} of them on both ranks.",
        "the parts must be cut from one and the same order.",
    )


def new_order(check: Check, seen: Sequence[Seen]) -> None:
    """Step 6: the second epoch has another order than the first."""
    check.that(
        seen[0].epochs[0] != seen[0].epochs[1],
        "the second epoch has another order than the first",
        f"Both begin with the images {seen[0].epochs[0][:5]}.",
        "who tells the sampler which epoch it is?",
    )


def one_speaks(check: Check, seen: Sequence[Seen], file: str) -> None:
    """Step 7: rank 0 prints and writes (this file, too), and the others do not."""
    lines = [len(one.printed.splitlines()) for one in seen]
    check.that(
        lines[0] > 0 and not any(lines[1:]),
        "rank 0 prints, rank 1 doesn't",
        f"They printed {lines} lines.",
    )
    check.that(
        file in seen[0].files and not any(one.files for one in seen[1:]),
        f"rank 0 writes {file}, rank 1 writes nothing",
        f"Rank 0 wrote {seen[0].files}, rank 1 wrote {seen[1].files}.",
    )


def resumed(check: Check, before: Sequence[Seen], after: Sequence[Seen]) -> None:
    """Step 8: after one epoch all ranks go on with the second, from the saved weights."""
    did = [len(one.epochs) for one in after]
    check.that(
        did == [1] * len(after),
        "after a run of one epoch both ranks go on with the second one",
        f"Of two epochs they trained {did}.",
        "all ranks take the epoch of rank 0.",
    )
    begun = [one.before[0] for one in after]
    check.that(
        set(begun) == {before[0].after[-1]},
        "with the weights that rank 0 had saved",
        f"Saved were {before[0].after[-1]}; they began with {' and '.join(begun)}.",
        "the weights must be broadcast after the checkpoint is loaded.",
    )


def mean_reported(check: Check, seen: Sequence[Seen]) -> None:
    """Step 9: what rank 0 reports is the mean over the ranks."""
    for what, which in (("loss", 0), ("accuracy", 1)):
        own = [one.own[0][which] for one in seen]
        reported = seen[0].reported[0][which]
        check.that(
            abs(reported - sum(own) / len(own)) < 1e-4,
            f"the reported {what} is the mean: {reported:.4f}, of "
            f"{' and '.join(f'{one:.4f}' for one in own)}",
            f"Reported is {reported:.4f}.",
            "the mean must be there before anything is reported, on all ranks.",
        )


def warm_up(check: Check, rates: Sequence[float], base: float, full: float) -> None:
    """Step 10: of two epochs, the first begins near `base`, grows, and the second has `full`."""
    steps = len(rates) // 2
    told = "The rates are " + ", ".join(f"{rate:.3g}" for rate in rates) + "."
    near = base + 0.45 * (full - base)
    check.that(rates[0] < near, f"the first step has a rate near {base:g}, that of one", told)
    check.that(
        all(a < b for a, b in zip(rates[: steps - 1], rates[1:steps], strict=True)),
        "it grows from step to step during the first epoch",
        told,
        "is anything else setting the rate as well?",
    )
    check.that(np.isclose(rates[steps], full, rtol=1e-3), f"the second has {full:g}", told)


def share_of_cores(check: Check, seen: Sequence[Seen]) -> None:
    """Step 11: each process uses its share of the cores."""
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // len(seen))
    used = [one.threads for one in seen]
    check.that(
        used == [share] * len(seen),
        f"each of the {len(seen)} processes uses {share} of the {cores} cores",
        f"They use {used}.",
        "integer division, and local_size(), since the other hosts have cores of their own.",
    )
