"""The students' version of the labs: nothing in it gives an answer away, and what is not written yet is to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest

from classroom.grading.handed_in import SMALL, small_master
from dlpar.classroom.grading.exercise import exercise, role
from dlpar.classroom.grading.release import STUB, is_master, release
from dlpar.classroom.hub.copies import bring
from dlpar.classroom.hub.settings import LISTED, Settings, without_solutions
from dlpar.classroom.hub.student import hand_out

LABS = Path(__file__).parents[3] / "labs"
EXERCISES = sorted(path.name for path in LABS.glob("[01][0-9]_*.ipynb"))
SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.S)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The students' version of all labs."""
    into = tmp_path_factory.mktemp("released")
    release(LABS, into)
    return into


def cells(path: Path, part: str) -> list[nbformat.NotebookNode]:
    """Cells of a notebook that play a part in its exercise."""
    return [cell for cell in nbformat.read(path, 4).cells if role(cell) == part]


@pytest.mark.parametrize("name", EXERCISES)
def test_every_lab_has_an_exercise_and_its_release_no_solution(released: Path, name: str) -> None:
    masters, students = cells(LABS / name, "answer"), cells(released / name, "answer")
    assert len(masters) == len(students) == 1 and cells(LABS / name, "check")
    solution = SOLUTION.search(masters[0].source).group(1)
    assert len(solution.strip().splitlines()) >= 2
    assert SOLUTION.sub("", masters[0].source).rstrip() == students[0].source.replace(STUB, "").rstrip()
    assert students[0].source.rstrip().endswith(STUB)
    text = (released / name).read_text()
    assert "SOLUTION" not in text and "HIDDEN" not in text
    assert not any(cell.get("outputs") for cell in nbformat.read(released / name, 4).cells)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_check_is_locked_carries_points_and_requires_a_solved_verdict(released: Path, name: str) -> None:
    for master, student in zip(cells(LABS / name, "check"), cells(released / name, "check"), strict=True):
        assert "assert solved, solved" in master.source and "assert solved" not in student.source
        assert student.metadata.nbgrader.points == 10
        assert student.metadata["editable"] is False and student.metadata["deletable"] is False


def test_a_release_writes_only_what_changed_and_removes_what_was_withdrawn(tmp_path: Path) -> None:
    masters, into = tmp_path / "masters", tmp_path / "into"
    (masters / "images").mkdir(parents=True)
    for name in EXERCISES[:2]:
        shutil.copy(LABS / name, masters)
    (masters / "images" / "panel.png").write_bytes(b"picture")
    (masters / "TEACHING.md").write_text("misconceptions")
    assert sorted(release(masters, into)) == [*EXERCISES[:2], "images/panel.png"]
    assert release(masters, into) == []
    (masters / EXERCISES[0]).unlink()
    (into / "images" / "panel.png").unlink()
    assert release(masters, into) == ["images/panel.png", EXERCISES[0]]
    assert not (into / EXERCISES[0]).exists()


def test_a_hub_of_masters_hands_out_the_release_and_one_of_released_labs_those(
    tmp_path: Path, released: Path
) -> None:
    shutil.copytree(
        LABS, tmp_path / "masters", ignore=lambda _, names: [n for n in names if n not in EXERCISES[:1]]
    )
    common = (LISTED, ("ada",), (), "127.0.0.1", 8000)
    handed_out = Path(
        without_solutions(Settings(*common, str(tmp_path / "masters"), str(tmp_path / "hub"))).labs
    )
    assert [path.name for path in handed_out.glob("*.ipynb")] == EXERCISES[:1] and not is_master(handed_out)
    assert without_solutions(Settings(*common, str(released), str(tmp_path / "hub"))).labs == str(released)


def test_a_student_s_server_hands_out_no_labs_with_solutions(tmp_path: Path, capsys) -> None:
    own = tmp_path / "home" / "dlpar-labs"
    hand_out(LABS, own)
    assert not list(own.iterdir()) and "holds solutions" in capsys.readouterr().err
    (tmp_path / "masters").mkdir()
    small_master(tmp_path / "masters")
    release(tmp_path / "masters", tmp_path / "released")
    hand_out(tmp_path / "released", own)
    assert [path.name for path in own.glob("*.ipynb")] == [f"{SMALL}.ipynb"]


def test_an_edited_lab_survives_a_new_release_of_the_course(tmp_path: Path) -> None:
    masters, into, own = (tmp_path / name for name in ("masters", "into", "own"))
    masters.mkdir()
    master = small_master(masters)
    release(masters, into)
    bring(into, own)
    mine = (own / master.name).read_text().replace(STUB, "return 2 * x")
    (own / master.name).write_text(mine)
    master.write_text(master.read_text().replace("double it", "double it, please"))
    assert release(masters, into) == [master.name]
    assert bring(into, own) == [f"{master.stem} (new).ipynb"] and bring(into, own) == []
    assert (own / master.name).read_text() == mine
    assert "please" in (own / f"{master.stem} (new).ipynb").read_text()


@pytest.mark.slow
def test_every_unwritten_answer_is_to_do_and_stops_nobody(released: Path, capsys) -> None:
    """The cells of each exercise in one process, with the lab's own imports, and what comes after the check."""
    for name in EXERCISES:
        alone = exercise(nbformat.read(LABS / name, 4))
        space: dict = {"__name__": "__main__"}
        exec(alone.cells[0].source, space)
        notebook = nbformat.read(released / name, 4)
        at = next(i for i, cell in enumerate(notebook.cells) if role(cell) == "check")
        after = [cell for cell in notebook.cells[at + 1 :][:1] if cell.cell_type == "code"]
        for cell in [c for c in notebook.cells[:at] if role(c)] + [notebook.cells[at]] + after:
            exec(compile(cell.source, name, "exec"), space)
        assert space["solved"].status == "to do", (name, space["solved"])
