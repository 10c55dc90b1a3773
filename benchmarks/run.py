"""All benchmarks that this machine can run, one after the other: tables, JSON and plots.

    python benchmarks/run.py [NAME ...] [--out build/benchmarks]

Nothing else should run meanwhile. Each table is printed and kept as a JSON file and a plot; all
of them together stand in results.md.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from table import FOLDER

HERE = Path(__file__).resolve().parent
# Ranks of each benchmark; 0 for one that starts its ranks by itself.
RANKS = {
    "launch": 0,
    "memory": 2,
    "allreduce": 2,
    "gradients": 2,
    "step": 2,
    "lightning_step": 2,
    "ranks": 0,
    "keras_step": 0,
    "hosts": 0,
    "gpu_allreduce": 2,
    "gpu_step": 2,
}


def missing(name: str) -> str:
    """What this machine lacks for a benchmark; "" if it can run."""
    if name.startswith("gpu") and not shutil.which("nvidia-smi"):
        return "needs two NVIDIA GPUs"
    if name.startswith("keras") and not importlib.util.find_spec("tensorflow"):
        return "needs TensorFlow"
    if name.startswith("lightning") and not importlib.util.find_spec("lightning"):
        return "needs Lightning"
    if name == "hosts" and (os.geteuid() != 0 or not shutil.which("ip")):
        return "needs root, and iproute2"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*RANKS, []], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.names or RANKS:
        if lack := missing(name):
            print(f"({name}: {lack})", flush=True)
            continue
        launcher = ["-m", "hvdrun", "-np", str(RANKS[name]), sys.executable] * (RANKS[name] > 0)
        command = [sys.executable, *launcher, str(HERE / f"{name}.py")]
        if subprocess.call(command, env={**os.environ, FOLDER: str(out)}):
            failed.append(name)
    text = ""
    for path in sorted(out.glob("*.json")):
        content = json.loads(path.read_text())
        plot(content, path.with_suffix(".png"))
        text += markdown(content, path.with_suffix(".png").name)
    (out / "results.md").write_text(text)
    print(f"results: {out / 'results.md'}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def markdown(content: dict, picture: str) -> str:
    lines = [content["columns"], ["---"] * len(content["columns"])]
    lines += [["" if v is None else v for v in row] for row in content["rows"]]
    cells = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in line] for line in lines]
    table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return f"## {content['title']}\n\n{content['facts']}\n\n{table}\n\n![plot]({picture})\n\n"


def plot(content: dict, path: Path) -> None:
    """The columns with a unit of time or speed, over the rows; ratios are left to the table.

    Lines where the rows are sizes or numbers of ranks, bars where they are things to compare.
    """
    from hvdlab import style

    names = [str(row[0]) for row in content["rows"]]
    bars = content["columns"][0] in ("model", "program", "variant")
    shown = [i for i, name in enumerate(content["columns"]) if i and " / " not in name]
    figure, (axes,) = style.figure(width=8, height=4.5)
    for number, i in enumerate(shown):
        values = [float("nan") if row[i] is None else row[i] for row in content["rows"]]
        if bars:
            width = 0.8 / len(shown)
            places = [at + (number - (len(shown) - 1) / 2) * width for at in range(len(names))]
            axes.bar(places, values, width, label=content["columns"][i])
        else:
            axes.plot(names, values, marker="o", label=content["columns"][i])
    if bars:
        axes.set_xticks(range(len(names)), names)
    else:
        axes.set_yscale("log")
    style.label(axes, content["title"], content["columns"][0], content["unit"])
    axes.tick_params(axis="x", rotation=15)
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
