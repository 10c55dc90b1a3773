"""Make a small site of the documentation: python tools/docs.py [FOLDER], build/site by default.

It needs no network and loads nothing from one. A link that leads nowhere is an error.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import properdocs.commands.build
import properdocs.config
import properdocs.exceptions

ROOT = Path(__file__).resolve().parent.parent
# What the pages link to, each where it stands in the repository, so that all links stay right.
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "docs", "slurm"]
FIRST = ["README.md", "labs/README.md", "docs/instructor.md", "docs/slurm.md"]
LAST = ["slurm/other_schedulers.md", "docs/style.md", "CONTRIBUTING.md", "CHANGELOG.md"]
CHECKS = dict.fromkeys(("not_found", "anchors", "absolute_links", "unrecognized_links"), "warn")


def build(site: Path) -> None:
    """Write the site into the folder `site`; raises properdocs' Abort where something is wrong."""
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        for name in PAGES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
        for path in [ROOT / "labs" / "README.md", *ROOT.glob("labs/*/*.ipynb")]:
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        others = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))
        empty = Path(folder, "properdocs.yml")
        empty.write_text("site_name: hvdlite\n")
        config = properdocs.config.load_config(
            str(empty),
            docs_dir=str(source),
            site_dir=str(site.resolve()),
            strict=True,
            use_directory_urls=False,  # so that it can be read without a server
            nav=[*FIRST, *(page for page in others if page not in FIRST + LAST), *LAST],
            plugins=[],  # no search: it needs a server
            theme={"name": "mkdocs", "highlightjs": False, "locale": "en"},
            validation={"nav": {"omitted_files": "warn"}, "links": CHECKS},
        )
        properdocs.commands.build.build(config)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    try:
        build(target)
    except properdocs.exceptions.Abort as error:
        sys.exit(f"docs: {error}")
    print(f"Open {target}/index.html")
