from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dlpar.data import BadData, cache


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(folder))
    return folder


def test_ranks_that_ask_together_make_the_arrays_once(cache_folder):
    made, got = [], []

    def make():
        made.append(1)
        time.sleep(0.2)
        return {"x": np.arange(5)}

    ranks = [threading.Thread(target=lambda: got.append(cache.cached("five", make))) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(20)
    assert len(made) == 1
    assert [arrays["x"].tolist() for arrays in got] == [[0, 1, 2, 3, 4]] * 4
    assert not list(cache_folder.glob("*.tmp"))


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not really", b"text"])
def test_a_damaged_file_is_made_anew(cache_folder, damage):
    cache_folder.mkdir()
    (cache_folder / "five.npz").write_bytes(damage)
    assert cache.cached("five", lambda: {"x": np.arange(5)})["x"].sum() == 10
    assert cache.cached("five", pytest.fail)["x"].sum() == 10


def test_arrays_are_made_where_nothing_can_be_kept(cache_folder):
    cache_folder.write_text("a file where the folder should be")
    assert cache.cached("five", lambda: {"x": np.arange(5)})["x"].sum() == 10


def test_a_lock_that_stays_taken_is_not_waited_for_forever(cache_folder, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(cache, "WAIT", 0.1)
    cache_folder.mkdir()
    with FileLock(cache_folder / "five.lock"):
        assert cache.cached("five", lambda: {"x": np.arange(5)})["x"].sum() == 10


def test_nothing_is_kept_of_a_failed_making(cache_folder):
    def fail():
        raise BadData("no")

    with pytest.raises(BadData):
        cache.cached("five", fail)
    assert not list(cache_folder.glob("*.npz")) + list(cache_folder.glob("*.tmp"))
