"""Make a site of the documentation: python tools/docs.py [FOLDER], build/site by default.

It needs no network and loads nothing from one, and its search works without a server. A link that
leads nowhere is an error. Labs are shown as students get them, with the outputs of the solved ones.
"""

import html
import importlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import docutils_namespace

ROOT = Path(__file__).resolve().parent.parent
# What the pages link to, each where it stands in the repository, so that all links stay right.
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs", "slurm"]
FIRST = ["labs/README", "docs/instructor", "docs/slurm"]
LAST = ["slurm/other_schedulers", "docs/style", "CONTRIBUTING", "CHANGELOG"]
# Their public names, with the docstrings.
MODULES = ["hvdlite", "hvdlite.torch", "hvdlite.tensorflow", "hvdlite.keras"]
MODULES += ["hvdlite.torch.elastic", "hvdlite.tensorflow.elastic", "hvdlite.keras.elastic"]
MODULES += ["hvdlite.keras.callbacks", "hvdlite.lightning"]
SETTINGS = {
    "project": "hvdlite",
    "root_doc": "README",
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "nb_execution_mode": "off",
    "myst_heading_anchors": 4,
    "autodoc_typehints": "description",
    "autodoc_member_order": "alphabetical",
    "default_role": "code",
    # Commands and job files in cells; Vega's pictures, which JupyterLab draws.
    "suppress_warnings": ["misc.highlighting_failure", "mystnb.unknown_mime_type"],
    "html_theme": "furo",
    "html_title": "hvdlite",
    "html_static_path": [str(Path(__file__).parent / "site")],
    "html_css_files": ["projector.css"],
    "html_js_files": ["projector.js"],
    "html_show_sphinx": False,
    "html_copy_source": False,
    "html_show_search_summary": False,  # needs a server
}


def build(site: Path) -> None:
    """Write the site into the folder `site`; raises SphinxError where something is wrong."""
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        for name in PAGES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
        labs = sorted(ROOT.glob("labs/*/*.ipynb"))
        for path in [ROOT / "labs" / "README.md", *labs]:
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(with_outputs(path) if path in labs else path.read_text())
        others = (f"docs/{path.stem}" for path in sorted(ROOT.glob("docs/*.md")))
        pages = [*FIRST, *(page for page in others if page not in FIRST + LAST), *LAST]
        write_contents(source / "README.md", pages + ["api/README"])
        write_contents(source / "labs" / "README.md", [f"{p.parent.name}/{p.stem}" for p in labs])
        write_interface(source / "api")
        places = (source, None, site.resolve(), Path(folder, "doctrees"))
        with docutils_namespace():
            app = Sphinx(*places, "html", SETTINGS, status=None, warningiserror=True)
            app.build()
    if app.statuscode:
        raise SphinxError("there are warnings, see above")
    shutil.copy(site / "README.html", site / "index.html")


def write_contents(page: Path, entries: list[str], hidden: bool = True) -> None:
    """Put the pages below this one into the table of contents."""
    listed = ":hidden:\n" if hidden else ""
    with page.open("a") as file:
        file.write(f"\n```{{toctree}}\n{listed}" + "\n".join(entries) + "\n```\n")


def write_interface(folder: Path) -> None:
    """A page for each module with its public names; each object is told of once."""
    folder.mkdir()
    (folder / "README.md").write_text("# The interface, name by name\n")
    write_contents(folder / "README.md", MODULES, hidden=False)
    told: dict[int, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        described = (each for each in module.__all__ if callable(getattr(module, each)))
        objects = {each: id(getattr(module, each)) for each in described}
        again = {each: told[key] for each, key in objects.items() if key in told}
        told |= {key: name for key in objects.values() if key not in told}
        lines = [f"# {name}", "", "```{eval-rst}", f".. automodule:: {name}"]
        lines += ["   :members:", "   :imported-members:"]
        lines += [f"   :exclude-members: {', '.join(again)}", "```", ""]
        lines += [f"- `{each}`: see [{page}]({page}.md)" for each, page in sorted(again.items())]
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")


def with_outputs(path: Path) -> str:
    """A lab as students get it, with what its solved cells show, but for what shows an answer."""
    notebook = json.loads(path.read_text())
    notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    solution = json.loads((path.parent / "solution" / path.name).read_text())
    solved = {cell["id"]: cell for cell in solution["cells"]}
    given = {line.strip() for cell in notebook["cells"] for line in cell["source"]}
    lines = {line.strip() for cell in solution["cells"] for line in cell["source"]}
    answers = [line for line in lines - given if len(line) > 40]  # shorter ones say little
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            outputs = solved[cell["id"]].get("outputs", [])
            cell["outputs"] = [each for each in outputs if not shows(each, answers)]
    return json.dumps(notebook)


def shows(output: dict, lines: list[str]) -> bool:
    """Whether an output of a cell has one of these lines in its text."""
    data = output.get("data", {}) | {"stream": output.get("text", [])}
    parts = ["".join(part) for part in data.values() if isinstance(part, list | str)]
    text = html.unescape(re.sub(r"<[^>]+>", "", "\n".join(parts)))
    return any(line in text for line in lines)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    try:
        build(target)
    except SphinxError as error:
        sys.exit(f"docs: {error}")
    print(f"Open {target}/index.html")
