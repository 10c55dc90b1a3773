"""`hvdlab doctor`: is this machine ready for the course, and if not, what is to be done?

Everything that might hang or crash (an import, a launcher, a file system) is asked in a process
of its own with a time limit. What is missing without harm is "absent"; only a "problem" fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .asking import ABSENT, OK, PROBLEM, Finding
from .machine import cores, disk, memory, ports, shared_memory
from .software import (
    data_sets,
    gpus,
    mpi,
    nccl,
    notebooks,
    python,
    pytorch,
    runtime,
    slurm,
    tensorflow,
)  # fmt: skip

QUESTIONS: tuple[Callable[[], Finding], ...] = (
    python, runtime, pytorch, tensorflow, notebooks, mpi, gpus, nccl, slurm, data_sets, cores,
    memory, shared_memory, disk, ports,
)  # fmt: skip


def examine() -> list[Finding]:
    """Ask everything, a few questions at a time; a question that breaks is a problem itself."""

    def safely(question: Callable[[], Finding]) -> Finding:
        try:
            return question()
        except Exception as error:
            return Finding(question.__name__, PROBLEM, repr(error), "report this")

    with ThreadPoolExecutor(4) as pool:
        findings = list(pool.map(safely, QUESTIONS))
    # No framework at all is a problem; one of them is enough.
    names = ("PyTorch", "TensorFlow")
    if all(f.state == ABSENT for f in findings if f.what in names):
        findings = [
            Finding(f.what, PROBLEM, f.detail, f.fix) if f.what in names else f for f in findings
        ]
    return findings


def run(as_json: bool) -> bool:
    """Print the report; returns whether there is no problem."""
    findings = examine()
    good = all(finding.state != PROBLEM for finding in findings)
    if as_json:
        print(json.dumps({"ok": good, "findings": [asdict(f) for f in findings]}, indent=1))
        return good
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    signs = {OK: "[green]✔[/]", ABSENT: "[dim]–[/]", PROBLEM: "[bold red]✘[/]"}
    for finding in findings:
        table.add_row(signs[finding.state], finding.what, escape(finding.detail))
        if finding.fix and finding.state != OK:
            lead = "[bold]To do:[/]" if finding.state == PROBLEM else "If you want it:"
            table.add_row("", "", f"{lead} {escape(finding.fix)}")
    console = Console()
    console.print(table)
    problems = sum(finding.state == PROBLEM for finding in findings)
    console.print(
        "\nReady for the course. – marks what is not there, which is fine."
        if good
        else f"\n{problems} problem{'s' * (problems > 1)}: see 'To do' above, then run this again."
    )
    return good
