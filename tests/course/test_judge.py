import numpy as np
import pytest
import torch

from dlpar.course import judge as verdict
from dlpar.lab import check


@pytest.fixture(autouse=True)
def first_try(monkeypatch):
    verdict._failed.clear()


CASES = [({"rank": 0, "world": 2}, [0, 2]), ({"rank": 1, "world": 2}, [1, 3])]


def right(rank, world):
    return [rank, rank + world]


def test_right_answer():
    found = check(right, CASES)
    assert found and repr(found) == "solved: right is right in all 2 cases."


def test_first_wrong_case_and_value_are_named():
    def mine(rank, world):
        return [rank, 2]

    found = check(mine, CASES)
    assert not found
    assert found.sentence == "mine(rank=1, world=2): value 1 is 2, expected 3 (1 of 2 differ)."


def test_hints_come_one_by_one_and_only_for_wrong_answers():
    def mine(rank, world):
        return [rank]

    shown = [len(check(mine, CASES, hints=["a", "b"]).hints) for _ in range(4)]
    assert shown == [1, 2, 2, 2]
    assert check(None, CASES, hints=["a"]).hints == []


@pytest.mark.parametrize("body", [None, lambda rank, world: None, lambda rank, world: ...])
def test_unsolved_is_to_do_and_not_wrong(body):
    found = check(body, CASES)
    assert found.status == "to do" and not found


def test_not_implemented_is_to_do():
    def mine(rank, world):
        raise NotImplementedError

    assert check(mine, CASES).status == "to do"


def test_exception_is_shown_with_the_students_own_line():
    def mine(rank, world):
        return [rank, world[0]]

    sentence = check(mine, CASES).sentence
    assert "raised TypeError" in sentence and "return [rank, world[0]]" in sentence


def test_arguments_are_the_students_to_change():
    given = [3, 1, 2]

    def mine(values):
        values.sort()
        return values

    assert check(mine, [((given,), [1, 2, 3])]) and given == [3, 1, 2]


@pytest.mark.parametrize(
    "got, expected, said",
    [
        (np.arange(3.0), np.arange(4.0), "it has shape (3,), expected (4,)"),
        (
            torch.ones(2, requires_grad=True),
            1 + torch.eye(2)[1],
            "value 1 is 1.0, expected 2.0 (1 of 2 differ)",
        ),
        ({"a": 1}, {"a": 2}, "['a'] is 1, expected 2"),
        ([[1], [2, 3]], [[1], [2, 4]], "[1], value 1 is 3, expected 4 (1 of 2 differ)"),
        ("ring", "tree", "it is 'ring', expected 'tree'"),
        (1.0, 1.0 + 1e-9, ""),
        (float("nan"), float("nan"), ""),
        (5, [5], "it has shape (), expected (1,)"),
        ("five", 5, "it is 'five', expected 5"),
    ],
)
def test_difference_names_the_place(got, expected, said):
    assert verdict.difference(got, expected) == said


def test_verdict_is_escaped():
    def mine(text):
        return "<b>"

    assert "&lt;b&gt;" in check(mine, [(("x",), "y")])._repr_html_()
