"""Files where keras.datasets and torchvision look."""

import pytest

from hvdlab import data


@pytest.mark.slow
def test_keras_loads_without_network(lab, mirror, tmp_path):
    home = {"KERAS_HOME": str(tmp_path / "keras")}
    out, err, code = lab.finish(lab.hvdlab("data", "--for", "keras", **home))
    assert code == 0, err
    assert out.count("written") == 4
    # Keras checks the hash of its mnist.npz, so nothing else may lie in its place.
    assert "mnist.npz SKIPPED" in out
    assert not (tmp_path / "keras/datasets/mnist.npz").exists()
    text = (
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "import keras\n"
        "(a, b), (c, d) = keras.datasets.fashion_mnist.load_data()\n"
        "from hvdlab import data\n"
        "full = data.load('fashion-mnist')\n"
        "assert (a == full.train_images).all() and (b == full.train_labels).all()\n"
        "assert (c == full.test_images).all() and (d == full.test_labels).all()\n"
    )
    _, err, code = lab.finish(lab.start("-c", text, **home, KERAS_BACKEND="torch"))
    assert code == 0, err
    assert "Downloading" not in err


def test_torchvision_layout_is_made_once_and_mended(lab, full_sets, tmp_path):
    root = tmp_path / "data"
    out, err, code = lab.finish(lab.hvdlab("data", "--for", "torchvision"))
    assert code == 0, err
    for name, folder in (("fashion-mnist", "FashionMNIST"), ("mnist", "MNIST")):
        for role, file in data.SETS[name].files.items():
            placed = (root / folder / "raw" / file.name).read_bytes()
            assert placed == bytes(full_sets[name].contents[role])
    bad = root / "MNIST/raw/t10k-labels-idx1-ubyte"
    bad.write_bytes(b"short")
    out, err, code = lab.finish(lab.hvdlab("data", "--for", "torchvision", "--root", str(root)))
    assert code == 0, err
    assert out.count("is there already") == 7
    assert f"{bad} is truncated" in out and "replaced" in out
    assert bad.stat().st_size == 10_008


def test_sample_is_never_placed(lab, tmp_path):
    out, _, code = lab.finish(lab.hvdlab("data", "--for", "torchvision", "--sources", "cache"))
    assert code == 0 and "nothing placed for torchvision: no full MNIST" in out
    assert not (tmp_path / "data").exists()
