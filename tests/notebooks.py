"""The labs' solved notebooks as programs that a type checker can read."""

import re
from pathlib import Path

from hvdlab import conversion
from hvdlab.builder.source import read

# What a notebook has without an import.
_PREAMBLE = "from IPython.display import display\n"


def programs(lab: Path, folder: Path) -> list[Path]:
    """Write what runs in a lab's solved notebook into `folder`, each program into its own file.

    The cells of the kernel are one program, those that run on all ranks (%%px) another; a cell of
    %%horovodrun or %%writefile is one by itself, and the cells of %%step become the script that
    they write. Lines of a shell or of a magic are left out.
    """
    kernel, ranks, others = [_PREAMBLE], [_PREAMBLE], {}
    for cell in read(lab).cells:
        if cell.kind in ("markdown", "exercise"):
            continue
        first, _, rest = cell.source.partition("\n")
        magic, *words = first.split() if first.startswith("%%") else [""]
        rest = re.sub(r"(?m)^(\s*)[!%]", r"\1pass  # ", rest)
        match magic:
            case "":
                kernel.append(re.sub(r"(?m)^(\s*)[!%]", r"\1pass  # ", cell.source))
                for name in re.findall(r'conversion\.begin\("(\w+\.py)"', cell.source):
                    conversion.begin(name, folder / f"my_{name}", again=True)
            case "%%px":
                ranks.append(rest)
            case "%%horovodrun":
                others[f"horovodrun_{len(others)}.py"] = _PREAMBLE + rest
            case "%%writefile" if words[0].endswith(".py"):
                others[words[0]] = rest
            case "%%step":
                conversion.current().put(words[0], cell.source.partition("\n")[2])
    parts = {"kernel.py": "\n\n".join(kernel), "ranks.py": "\n\n".join(ranks), **others}
    for name, text in parts.items():
        (folder / name).write_text(text + "\n")
    return sorted(folder.glob("*.py"))
