"""What is taken from a student's notebook: her answers, once, and only if it is hers."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

from classroom.grading.handed_in import SMALL, answer_cell, hand_in, small_master
from dlpar.classroom.grading.box import Box
from dlpar.classroom.grading.exercise import Unreadable, exercise, handed_in, students, with_answers
from dlpar.classroom.grading.grade import Lab, judged
from dlpar.classroom.grading.release import release


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A released lab."""
    (tmp_path / "masters").mkdir()
    small_master(tmp_path / "masters")
    release(tmp_path / "masters", tmp_path / "released")
    return tmp_path / "released" / f"{SMALL}.ipynb"


def test_students_are_those_with_a_folder_in_one_place_or_by_a_path_with_their_name(tmp_path: Path) -> None:
    for name in ("ada/labs", "bob/labs", "cleo", ".hidden/labs", "a b/labs"):
        (tmp_path / name).mkdir(parents=True)
    assert students(str(tmp_path)) == ["ada", "bob", "cleo"]
    assert students(f"{tmp_path}/{{student}}/labs") == ["ada", "bob"]
    assert students(f"{tmp_path}/nowhere") == []


def test_a_path_with_a_name_in_it_reads_the_same_notebook(tmp_path: Path, lab: Path) -> None:
    hand_in(lab, tmp_path / "home" / "ada" / "labs", "pass")
    cells = handed_in(f"{tmp_path}/home/{{student}}/labs", "ada", SMALL)
    assert answer_cell({"cells": cells})["source"] == "pass"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": 7}', "[" * 100_000])
def test_a_damaged_notebook_is_told(tmp_path: Path, damage: str) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / f"{SMALL}.ipynb").write_text(damage)
    with pytest.raises(Unreadable, match="damaged"):
        handed_in(str(tmp_path), "ada", SMALL)


def test_links_and_pipes_are_not_opened(tmp_path: Path, lab: Path) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "link.ipynb").symlink_to(lab)
    os.mkfifo(tmp_path / "ada" / "pipe.ipynb")
    for name, why in (("link", "cannot be opened"), ("pipe", "no file"), ("none", "no notebook")):
        with pytest.raises(Unreadable, match=why):
            handed_in(str(tmp_path), "ada", name)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file of another account: root")
def test_a_notebook_in_a_student_s_own_folder_must_be_the_student_s(tmp_path: Path, lab: Path) -> None:
    hand_in(lab, tmp_path / "nobody" / "labs", "pass")  # root's, in the folder of the account nobody
    with pytest.raises(Unreadable, match="somebody else"):
        handed_in(f"{tmp_path}/{{student}}/labs", "nobody", SMALL)
    assert handed_in(str(tmp_path / "nobody"), "labs", SMALL)  # a teacher's own folder


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file of another account: root")
def test_under_sudo_the_notebooks_a_teacher_has_collected_are_read(
    tmp_path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(lab, tmp_path / "ada", "pass")
    os.chown(tmp_path / "ada" / f"{SMALL}.ipynb", 1000, 1000)
    monkeypatch.delenv("SUDO_UID", raising=False)
    with pytest.raises(Unreadable, match="somebody else"):
        handed_in(str(tmp_path), "ada", SMALL)
    monkeypatch.setenv("SUDO_UID", "1000")
    assert answer_cell({"cells": handed_in(str(tmp_path), "ada", SMALL)})["source"] == "pass"


def test_an_answer_counts_only_where_it_is_marked_once_and_nothing_else_is_taken(
    tmp_path: Path, lab: Path
) -> None:
    master = exercise(nbformat.read(tmp_path / "masters" / f"{SMALL}.ipynb", 4))

    def found(change) -> tuple[list[str], list[str]]:
        hand_in(lab, tmp_path / "in" / "ada", "mine", change)
        notebook, missing = with_answers(master, handed_in(str(tmp_path / "in"), "ada", SMALL))
        assert len(notebook.cells) == len(master.cells)
        return [cell.source for cell in notebook.cells], missing

    right, missing = found(lambda nb: nb["cells"].reverse())
    assert "mine" in right and not missing
    assert right[-1] == master.cells[-1].source  # the check with its hidden test
    twice, missing = found(lambda nb: nb["cells"].append(dict(answer_cell(nb))))
    assert "mine" not in twice and missing == ["2 cells of the notebook are marked double; there must be one"]
    strange, missing = found(lambda nb: answer_cell(nb).update(source={"mine": 1}))
    assert missing and "mine" not in strange


def test_an_answer_as_it_was_released_is_to_do_and_nothing_is_run(tmp_path: Path, lab: Path) -> None:
    master = exercise(nbformat.read(tmp_path / "masters" / f"{SMALL}.ipynb", 4))
    blank = nbformat.read(lab, 4)
    hand_in(lab, tmp_path / "in" / "ada", None)
    _, verdicts = judged(str(tmp_path / "in"), "ada", Lab(SMALL, master, blank), Box(None))
    assert verdicts == {"check-double": {"solved": False, "said": "to do: the answer is as it was released"}}
