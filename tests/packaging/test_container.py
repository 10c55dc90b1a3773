"""The container's files: what can be said of them without Docker."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".devcontainer"
STEPS = (FOLDER / "Dockerfile").read_text().replace("\\\n", "")
STEPS = [line.split(maxsplit=1) for line in STEPS.splitlines() if line and line[0] != "#"]


def test_the_dockerfile_keeps_the_usual_rules():
    words = [word for word, _ in STEPS]
    assert words[0] == "FROM" and re.fullmatch(r"debian:(?!latest)\S+", STEPS[0][1])
    assert words.index("USER") < words.index("COPY") and ["USER", "root"] not in STEPS
    for word, rest in STEPS:
        if word == "RUN" and "apt-get" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
    assert json.loads(dict(STEPS)["CMD"])[:2] == ["make", "jupyter"]


def test_what_it_calls_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {name for _, rest in STEPS for name in re.findall(r"\bmake ([a-z-]+)$", rest)}
    assert called == {"install"} and {"install", "jupyter"} <= targets
    facts = json.loads((FOLDER / "devcontainer.json").read_text())
    assert (FOLDER / facts["build"]["dockerfile"]).is_file()
    assert (FOLDER / facts["build"]["context"]).resolve() == ROOT
    venv = re.search(r"VENV=(\S+)", dict(STEPS)["ENV"]).group(1)
    python = facts["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python == f"{venv}/bin/python"
