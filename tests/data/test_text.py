from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlpar import data
from dlpar.config.experiment import Data
from dlpar.data import BadData, Dataset, load
from dlpar.data import text as docstrings


def load_text(
    seed: int = 0, model: str = "transformer", dtype: torch.dtype = torch.float32, context: int = 32
) -> Dataset:
    return load(Data(name="docstrings", context=context), seed=seed, dtype=dtype, model=model)


@pytest.mark.parametrize("context", [2, 32, 1000])
def test_characters_are_windows_whose_targets_follow_by_one(context):
    text = load_text(context=context)
    assert (text.task, text.shape, text.classes) == ("characters", (context,), 96)
    for x, y in ((text.train_x, text.train_y), (text.test_x, text.test_y)):
        assert x.dtype == y.dtype == torch.int64
        assert torch.equal(x[:, 1:], y[:, :-1])
        assert torch.equal(x[1:, 0], y[:-1, -1])
    assert 0.5 * data.TRAIN_CHARACTERS < text.train_x.numel() <= data.TRAIN_CHARACTERS
    assert 0.5 * data.TEST_CHARACTERS < text.test_x.numel() <= data.TEST_CHARACTERS
    # Windows and targets share one stream.
    assert text.train_x.untyped_storage().nbytes() <= 8 * (data.TRAIN_CHARACTERS + 1)
    assert text.train_x.untyped_storage().data_ptr() == text.train_y.untyped_storage().data_ptr()


def test_held_out_docstrings_are_not_trained_on():
    text = load_text()
    trained = docstrings.decode(text.train_x)
    held_out = docstrings.decode(text.test_x).split("\n\n")
    long = [passage for passage in held_out[:-1] if len(passage) > 150]
    assert len(long) > 5
    # Passages may be copied from one docstring to another in the library itself.
    assert sum(passage in trained for passage in long) < 0.2 * len(long)


def test_docstrings_are_english_and_depend_on_the_seed():
    first, other = (load_text(seed) for seed in (0, 1))
    text = docstrings.decode(first.train_x[:2000])
    assert text.count(" the ") > 100
    assert not torch.equal(first.test_x[:50], other.test_x[:50])


@settings(deadline=None)
@given(st.text(docstrings.ALPHABET))
def test_encoding_is_undone_by_decoding(text):
    assert docstrings.decode(docstrings.encode(text)) == text


def test_characters_outside_the_alphabet_become_question_marks():
    assert docstrings.decode(docstrings.encode("a\tb\x00é😀~\n")) == "a?b???~\n"


def test_words_are_rows_of_equal_length_labelled_by_package():
    text = load_text(model="logistic", dtype=torch.float64)
    assert (text.task, text.classes, text.shape) == ("classification", 10, (1000,))
    assert text.train_y.unique().tolist() == list(range(10))
    lengths = text.train_x.norm(dim=1)
    assert torch.allclose(lengths[lengths > 0], torch.tensor(8.0, dtype=torch.float64))
    assert (lengths > 0).double().mean() > 0.95
    assert (text.train_x > 0).double().mean() < 0.05


def test_word_counts_are_those_of_the_text():
    words = docstrings.words()
    assert len(words.packages) == 10
    for word, package in {"logger": "logging", "coroutine": "asyncio", "header": "email"}.items():
        held = words.counts[:, words.words.index(word)]
        assert words.packages[words.labels[held.argmax()]] == package


def test_rare_words_weigh_more_and_absent_ones_nothing():
    three = docstrings.Words(
        counts=np.array([[1, 1, 0], [1, 0, 1], [5, 0, 0], [0, 0, 0]]),
        labels=np.zeros(4, dtype=int),
        words=["common", "rare", "other"],
        packages=["p"],
    )
    dense = three.tf_idf(np.array([0, 1, 3]))
    assert dense[0, 1] > dense[0, 0] > 0
    assert np.linalg.norm(dense[:3], axis=1) == pytest.approx(docstrings.LENGTH)
    assert not dense[3].any()


def test_sources_are_read_in_the_order_of_their_paths_without_tests(tmp_path):
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("zoo.py", '"""Zoo."""')
    write("ant/hill.py", 'class A:\n  """A class."""\n  async def b(self):\n    """Zoo, too."""\ndef c(): 1')
    write("bee.py", '"""Zoo."""\ndef f():\n  """Bee.\n\n     More."""')
    write("test/test_zoo.py", '"""Left out."""')
    write("idlelib/app.py", '"""Left out."""')
    write("broken.py", '"""Left out.""" def')
    expected = [("ant", "A class."), ("ant", "Zoo, too."), ("bee", "Zoo."), ("bee", "Bee.\n\nMore.")]
    assert docstrings.read(tmp_path) == expected


def test_a_python_without_sources_is_said_in_one_sentence(tmp_path):
    with pytest.raises(BadData, match=f"{tmp_path} holds no Python sources"):
        docstrings.read(tmp_path)
