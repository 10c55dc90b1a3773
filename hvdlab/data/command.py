"""What `hvdlab data` does."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .catalog import SETS, DataError, data_set
from .export import for_keras, for_torchvision
from .fetch import chosen_sources, find_or_fetch
from .sample import load_sample, warn

TARGETS = ("keras", "torchvision")


def run(sets: list[str], targets: list[str], root: Path, sources: list[str] | None) -> bool:
    """Fetch the sets, place them for other libraries, print a table.

    Returns:
        True if every set is there in full; where one is not, the sample's warning is out.

    Raises:
        DataError: an unknown set, source or target, or a folder that can't be written.
    """
    specs = [data_set(name) for name in sets or SETS]
    chosen_sources(sources)
    for target in targets:
        if target not in TARGETS:
            raise DataError(f"--for knows {', '.join(TARGETS)}, not {target!r}")
    table = Table("data set", "training", "test", "from", title="Data sets")
    table.add_column("where", overflow="fold")
    remarks: list[str] = []
    complete = True
    for spec in specs:
        try:
            found = find_or_fetch(spec, sources=sources)
        except DataError as error:
            complete = False
            sample = load_sample(spec)
            train, test = (len(sample[f"{part}_labels"]) for part in ("train", "test"))
            warn(spec, train, str(error))
            table.add_row(spec.title, f"{train} (SAMPLE)", str(test), "hvdlab itself", "")
            remarks += [f"nothing placed for {target}: no full {spec.title}" for target in targets]
            continue
        table.add_row(spec.title, "60,000", "10,000", found.origin, str(found.folder))
        if "keras" in targets:
            remarks += for_keras(spec, found.contents, sources)
        if "torchvision" in targets:
            remarks += for_torchvision(spec, found.contents, root)
    console = Console()
    console.print(table)
    for remark in remarks:
        console.print(remark, soft_wrap=True, markup=False, highlight=False)
    return complete
