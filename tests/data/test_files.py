from __future__ import annotations

import gzip
import os
import pickle

import numpy as np
import pytest
import torch
from image_files import idx, images_of, write_cifar10, write_mnist

from dlpar.config.experiment import Data
from dlpar.data import BadData, Dataset, load


def load_of(name: str, model: str = "mlp", folder: str | None = None) -> Dataset:
    return load(Data(name=name, folder=folder), seed=0, dtype=torch.float64, model=model)


@pytest.mark.parametrize("compress", [True, False])
def test_mnist_keeps_its_own_test_set(tmp_path, compress):
    write_mnist(tmp_path, train=100, test=40, compress=compress)
    mnist = load_of("mnist", folder=str(tmp_path), model="cnn")
    assert (mnist.shape, mnist.classes) == ((1, 28, 28), 10)
    assert (len(mnist.train_x), len(mnist.test_x)) == (100, 40)
    assert mnist.train_y.tolist() == [i % 10 for i in range(100)]
    pixels = torch.from_numpy(images_of(np.arange(100) % 10, (28, 28), seed=100)).double()
    assert torch.allclose(mnist.train_x[:, 0], (pixels - pixels.mean()) / pixels.std(correction=0) * 16 / 28)


@pytest.mark.parametrize("sizes", [{"train": 0, "test": 100}, {"train": 100, "test": 0}])
def test_one_set_alone_is_split(tmp_path, monkeypatch, sizes):
    write_mnist(tmp_path, **sizes)
    monkeypatch.setenv("DLPAR_DATA", str(tmp_path))
    mnist = load_of("mnist")
    assert (len(mnist.train_x), len(mnist.test_x), mnist.shape) == (80, 20, (784,))
    assert mnist.test_y.bincount().tolist() == [2] * 10


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GOOD_IMAGES = idx(np.zeros((20, 28, 28)))
GOOD_LABELS = idx(np.arange(20) % 10)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "existing folder that holds .*-ubyte"),
        ({IMAGES: GOOD_IMAGES}, "train-labels-idx1-ubyte .or .gz. is missing"),
        ({LABELS: GOOD_LABELS}, "train-images-idx3-ubyte .or .gz. is missing"),
        ({IMAGES: GOOD_IMAGES[:-1]}, "truncated: 15679 bytes where 15680"),
        ({IMAGES: GOOD_IMAGES[:10]}, "truncated: 6 bytes where 12"),
        ({IMAGES: b""}, "corrupt: its magic number is 0x,"),
        ({IMAGES: GOOD_LABELS}, "its magic number is 0x00000801, expected is 0x00000803"),
        ({IMAGES: GOOD_IMAGES + b"x"}, "continues after the 20 samples"),
        ({IMAGES: b"\0\0\x08\x03" + b"\xff" * 4 + GOOD_IMAGES[8:]}, "truncated|cannot be read"),
        ({IMAGES: idx(np.zeros((20, 28, 27)))}, r"size \(28, 27\), expected is \(28, 28\)"),
        ({IMAGES: idx(np.zeros((19, 28, 28)))}, "19 images, but train-labels-idx1-ubyte 20 labels"),
        ({LABELS: idx(np.arange(20))}, "a label is 10, expected are 0 to 9"),
        ({IMAGES: idx(np.zeros((0, 28, 28))), LABELS: idx(np.zeros(0))}, "holds no samples"),
        ({IMAGES + ".gz": gzip.compress(GOOD_IMAGES)[:-20], IMAGES: None}, "cannot be read: .*end"),
        ({IMAGES + ".gz": gzip.compress(GOOD_IMAGES)[:-8] + b"12345678", IMAGES: None}, "cannot be read"),
        ({IMAGES + ".gz": GOOD_IMAGES, IMAGES: None}, "cannot be read: Not a gzipped file"),
    ],
)
def test_a_bad_mnist_file_is_named_in_one_sentence(tmp_path, files, said):
    alone = not files or said.endswith("is missing")
    for name, content in (files if alone else {IMAGES: GOOD_IMAGES, LABELS: GOOD_LABELS} | files).items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=said) as caught:
        load_of("mnist", folder=str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_must_be_given_and_exist(tmp_path, monkeypatch):
    monkeypatch.delenv("DLPAR_DATA", raising=False)
    with pytest.raises(BadData, match=r"data.folder: got nothing, nor is \$DLPAR_DATA set"):
        load_of("mnist")
    with pytest.raises(BadData, match="data.folder: got .*nowhere"):
        load_of("mnist", folder=str(tmp_path / "nowhere"))
    for folder in ("~nobody-of-this-name/x", "x" * 300):
        with pytest.raises(BadData, match=f"data.folder: got '{folder}'"):
            load_of("mnist", folder=folder)
    monkeypatch.setenv("DLPAR_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(BadData, match=r"\$DLPAR_DATA: got .*nowhere"):
        load_of("cifar10")


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_cifar10_reads_channels_in_order(tmp_path, inner):
    (tmp_path / inner).mkdir(exist_ok=True)
    write_cifar10(tmp_path / inner, size=20)
    cifar = load_of("cifar10", folder=str(tmp_path), model="cnn")
    assert (cifar.shape, len(cifar.train_x), len(cifar.test_x)) == ((3, 32, 32), 100, 20)
    assert cifar.train_y.tolist() == [i % 10 for i in range(20)] * 5
    pixels = images_of(np.arange(20) % 10, (3, 32, 32), seed=1)
    red, shown = pixels[:, 0].flatten().astype(float), cifar.train_x[20:40, 0].flatten().numpy()
    assert np.corrcoef(red, shown)[0, 1] > 0.9999
    assert cifar.train_x.mean((0, 2, 3)).abs().max() < 1e-5
    assert cifar.train_x.square().sum((1, 2, 3)).mean().item() == pytest.approx(256, rel=1e-3)
    assert load_of("cifar10", folder=str(tmp_path)).shape == (3072,)


class RunsCode:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_pickle_cannot_run_code(tmp_path):
    write_cifar10(tmp_path)
    trace = tmp_path / "trace"
    content = {b"data": RunsCode(f"touch {trace}"), b"labels": []}
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps(content))
    with pytest.raises(BadData, match="data_batch_2.*allowed are arrays only"):
        load_of("cifar10", folder=str(tmp_path))
    assert not trace.exists()


ROWS = np.zeros((4, 3072), dtype=np.uint8)


def batch_of(rows: np.ndarray, labels: list[int]) -> bytes:
    return pickle.dumps({b"data": rows, b"labels": labels}, protocol=2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "data_batch_3 missing in"),
        (b"", "data_batch_3 is truncated or corrupt"),
        (b"not a pickle", "data_batch_3 is truncated or corrupt"),
        (batch_of(ROWS, [0] * 4)[:-100], "data_batch_3 is truncated or corrupt"),
        (pickle.dumps([1, 2]), "data_batch_3 is truncated or corrupt"),
        (pickle.dumps({b"data": ROWS}), "data_batch_3 is truncated or corrupt: b'labels'"),
        (batch_of(ROWS, [0] * 3), r"labels of shape \(3,\) with uint8 data of shape \(4, 3072\)"),
        (batch_of(ROWS * 1.0, [0] * 4), r"labels of shape \(4,\) with float64 data"),
        (batch_of(ROWS, [[0]] * 4), r"int64 labels of shape \(4, 1\) .*, and one whole number a row"),
        (batch_of(ROWS, np.eye(4, 10)), r"float64 labels of shape \(4, 10\)"),
        (batch_of(ROWS, [0.7] * 4), r"float64 labels of shape \(4,\)"),
        (pickle.dumps({b"data": ROWS[:0], b"labels": []}, 3), "data_batch_3 is corrupt: it holds no samples"),
        (batch_of(ROWS, [0, 1, 2, -1]), "a label is -1"),
    ],
)
def test_a_bad_cifar10_file_is_named_in_one_sentence(tmp_path, content, said):
    write_cifar10(tmp_path, size=4)
    path = tmp_path / "data_batch_3"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(BadData, match=said) as caught:
        load_of("cifar10", folder=str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
