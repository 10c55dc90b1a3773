"""What a release does to files that are right in the repository and elsewhere are not.

    python tools/release.py pages https://github.com/OWNER/NAME v0.2.0     # before the build
    python tools/release.py recipe dist/hvdlite-0.2.0.tar.gz >recipe.yaml  # after it

`pages` makes README.md's links and pictures absolute, as a package index shows the page without
the files beside it, and writes the project's addresses into pyproject.toml. It stops where the tag
is not that of the version, or where CHANGELOG.md has no section for it. `recipe` prints the recipe
for conda-forge with the hash of the source archive.
"""

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!https?:|#|mailto:)([^)]+)\)")
NO_HASH = "0" * 64


def absolute(text: str, repository: str, tag: str) -> str:
    """A page's text, every relative link and picture of which is at its place in the repository."""

    def at_its_place(match: re.Match[str]) -> str:
        is_picture, label, path = match.groups()
        return f"{is_picture}{label}{repository}/{'raw' if is_picture else 'blob'}/{tag}/{path})"

    return LINK.sub(at_its_place, text)


def pages(root: Path, repository: str, tag: str) -> None:
    """Change README.md and pyproject.toml in `root`; raises ValueError where nothing is to be
    released under that tag."""
    version = re.search(r'"(.+)"', (root / "hvdlite" / "_version.py").read_text().splitlines()[-1])
    if version is None or tag != f"v{version[1]}":
        raise ValueError(f"the tag is {tag}, and hvdlite/_version.py says {version and version[1]}")
    if f"\n## [{version[1]}]" not in (root / "CHANGELOG.md").read_text():
        raise ValueError(f"CHANGELOG.md has no section [{version[1]}]")
    readme, project = root / "README.md", root / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(), repository, tag))
    urls = {
        "Source": repository,
        "Documentation": f"{repository}/tree/{tag}/docs",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    project.write_text(f"{project.read_text()}\n[project.urls]\n{table}")


def recipe(root: Path, archive: Path) -> str:
    """The recipe's text for a source archive; raises ValueError for one of another version."""
    text = (root / "conda" / "recipe.yaml").read_text()
    version = re.search(r'version: "(.+)"', text)
    if version is None or archive.name != f"hvdlite-{version[1]}.tar.gz":
        raise ValueError(f"{archive.name} is not what conda/recipe.yaml is for")
    return text.replace(NO_HASH, hashlib.sha256(archive.read_bytes()).hexdigest())


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["pages", repository, tag]:
                pages(ROOT, repository, tag)
            case ["recipe", archive]:
                print(recipe(ROOT, Path(archive)), end="")
            case _:
                sys.exit(__doc__)
    except (OSError, ValueError) as error:
        sys.exit(f"release: {error}")
