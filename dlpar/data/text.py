"""English text available on every machine: the docstrings of Python's standard library.

The text has two views.  A language model gets a stream of characters.  A classifier gets the word counts of
each docstring, labelled with its package.
"""

from __future__ import annotations

import ast
import platform
import sys
import sysconfig
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlpar.config.schema import BadData
from dlpar.data.cache import Arrays, cached

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The 96 known characters. Any other character becomes ``?``."""

PACKAGES = 10
"""Number of labels in the word view: the packages with the most docstrings."""

WORDS = 1000
"""Number of words counted: the most frequent ones."""

LENGTH = 8.0
"""Length of a weighted row of words, for fast and stable softmax regression at a learning rate of 0.1."""

LEFT_OUT = {
    "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data",
    "site-packages", "dist-packages", "__pycache__",
}  # fmt: skip
"""Skipped folders of the standard library: tests, applications, generated or foreign code."""


@dataclass(frozen=True)
class Words:
    """Word counts of docstrings.

    Attributes
    ----------
    counts : numpy.ndarray, uint16, shape (docstrings, words)
        Number of times that each word occurs in each docstring.
    labels : numpy.ndarray, int64, shape (docstrings,)
        The package of each docstring.
    words, packages : list of str
        Names of the columns, and of the labels.
    """

    counts: np.ndarray
    labels: np.ndarray
    words: list[str]
    packages: list[str]

    def tf_idf(self, train: np.ndarray) -> np.ndarray:
        """Weight the counts. Rare words count more, and every docstring gets length `LENGTH`.

        Parameters
        ----------
        train : numpy.ndarray
            Rows that determine the rarity of words, int64.

        Returns
        -------
        numpy.ndarray
            float64, (docstrings, words): log(1 + count) times log(docstrings / docstrings with the word),
            then each row scaled.
        """
        holders = (self.counts[train] > 0).sum(axis=0)
        rarity = np.log(len(train) / np.maximum(holders, 1))
        values = np.log1p(self.counts, dtype=np.float64) * rarity
        return LENGTH * values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


def characters() -> list[np.ndarray]:
    """Return every docstring as uint8 positions in `ALPHABET`, in source-file order."""
    corpus = _corpus()
    return np.split(corpus["codes"], corpus["starts"][1:-1])


def words() -> Words:
    """Return the word counts of docstrings in the `PACKAGES` packages with the most docstrings."""
    corpus = _corpus()
    return Words(corpus["counts"], corpus["labels"], corpus["words"].tolist(), corpus["packages"].tolist())


def encode(text: str) -> np.ndarray:
    """Encode `text` as uint8 positions in `ALPHABET`, one per character."""
    table = np.full(128, ALPHABET.index("?"), dtype=np.uint8)
    table[[ord(character) for character in ALPHABET]] = range(len(ALPHABET))
    return table[np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)]


def decode(codes: np.ndarray) -> str:
    """Decode `codes` from :func:`encode` to text.

    `codes` are integers of any type and shape, such as a tensor.
    """
    return np.frombuffer(ALPHABET.encode(), dtype=np.uint8)[np.asarray(codes)].tobytes().decode()


def _corpus() -> Arrays:
    source = Path(sysconfig.get_path("stdlib"))
    version = f"{sys.implementation.name}-{platform.python_version()}"
    return cached(f"docstrings-2-{version}", lambda: _arrays(read(source)))


def read(source: Path) -> list[tuple[str, str]]:
    """Return the distinct docstrings under a folder of Python sources.

    Parameters
    ----------
    source : Path
        Folder of sources, such as the standard library's.

    Returns
    -------
    list of (str, str)
        Top-level package or module, and the docstring, in the order of the files' paths, on any file system.

    Raises
    ------
    BadData
        If there is no docstring, because some Pythons are installed without sources.
    """
    found: dict[str, str] = {}
    for path in sorted(source.rglob("*.py"), key=lambda path: path.relative_to(source).parts):
        parts = path.relative_to(source).parts
        if LEFT_OUT.intersection(parts) or parts[0].startswith(("config-", "_sysconfigdata")):
            continue
        for text in _of_file(path):
            found.setdefault(text, parts[0].removesuffix(".py"))
    if not found:
        raise BadData(f"data: got 'docstrings', but {source} holds no Python sources to read docstrings from")
    return [(package, text) for text, package in found.items()]


def _of_file(path: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in strings of foreign code
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # templates and files for other versions
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
    return [text for text in texts if text]


def _arrays(docstrings: list[tuple[str, str]]) -> Arrays:
    """Make the cached arrays of characters and word counts. The arrays hold no Python objects."""
    # Imported here, because it is slow and needed once per machine.
    from sklearn.feature_extraction.text import CountVectorizer

    codes = [encode(text + "\n\n") for _, text in docstrings]
    number = Counter(package for package, _ in docstrings)
    packages = sorted(number, key=lambda package: (-number[package], package))[:PACKAGES]
    chosen = [(packages.index(package), text) for package, text in docstrings if package in packages]
    counter = CountVectorizer(max_features=WORDS, token_pattern=r"[a-z]{2,}")
    counts = counter.fit_transform(text for _, text in chosen).toarray()
    return {
        "codes": np.concatenate(codes),
        "starts": np.cumsum([0, *map(len, codes)]),
        "counts": counts.astype(np.uint16),
        "labels": np.array([label for label, _ in chosen]),
        "words": counter.get_feature_names_out().astype(str),
        "packages": np.array(packages),
    }
