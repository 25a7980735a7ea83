"""The students' version of the labs gives no answer away; an update of a student's copy leaves her work alone."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

import nbformat
import pytest
from classroom.grading.handed_in import SMALL, small_master

from dlpar.classroom.grading.grade import exercise, role
from dlpar.classroom.hub.classroom import LISTED, Settings, without_solutions
from dlpar.classroom.hub.student import hand_out
from dlpar.cli import main
from dlpar.course.release import STUB, bring, is_master, release

LABS = Path(__file__).parents[2] / "labs"
EXERCISES = sorted(path.name for path in LABS.glob("[0-9]*.ipynb"))
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
    shown = [cell for cell in nbformat.read(released / name, 4).cells if cell.get("outputs")]
    assert all(cell.metadata.tags == ["recording"] for cell in shown) and len(shown) == (name[:2] == "00")


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


@pytest.fixture
def labs(tmp_path: Path) -> Path:
    """Shared labs of two notebooks and a picture."""
    shared = tmp_path / "shared"
    (shared / "images").mkdir(parents=True)
    (shared / "00.ipynb").write_text("zero, first version")
    (shared / "01.ipynb").write_text("one, first version")
    (shared / "images" / "panel.png").write_bytes(b"picture")
    (shared / ".ipynb_checkpoints").mkdir()
    (shared / ".ipynb_checkpoints" / "00.ipynb").write_text("not for students")
    return shared


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "home" / "dlpar-labs"


def names(own: Path) -> set[str]:
    return {str(p.relative_to(own)) for p in own.rglob("*") if p.is_file()} - {".delivered.json"}


def test_the_first_visit_brings_everything_and_closes_it_to_others(labs: Path, own: Path) -> None:
    assert bring(labs, own) == ["00.ipynb", "01.ipynb", "images/panel.png"]
    assert names(own) == {"00.ipynb", "01.ipynb", "images/panel.png"}
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert {stat.S_IMODE((own / name).stat().st_mode) for name in names(own)} == {0o600}
    assert bring(labs, own) == []


def test_an_edited_lab_survives_an_update_and_the_new_version_arrives_beside_it_once(
    labs: Path, own: Path
) -> None:
    bring(labs, own)
    (own / "00.ipynb").write_text("zero, and my solution")
    (labs / "00.ipynb").write_text("zero, second version")
    assert bring(labs, own) == ["00 (new).ipynb"]
    assert (own / "00.ipynb").read_text() == "zero, and my solution"
    assert (own / "00 (new).ipynb").read_text() == "zero, second version"
    (own / "00 (new).ipynb").unlink()  # she does not want it
    assert bring(labs, own) == []
    (labs / "00.ipynb").write_text("zero, third version")
    assert bring(labs, own) == ["00 (new).ipynb"]
    assert (own / "00.ipynb").read_text() == "zero, and my solution"


def test_a_new_version_that_was_edited_too_is_left_alone(labs: Path, own: Path) -> None:
    bring(labs, own)
    for version, mine in (
        ("second", "00.ipynb"),
        ("third", "00 (new).ipynb"),
        ("fourth", "00 (new) (new).ipynb"),
    ):
        (own / mine).write_text(f"mine before the {version}")
        (labs / "00.ipynb").write_text(f"zero, {version} version")
        bring(labs, own)
    assert (own / "00.ipynb").read_text() == "mine before the second"
    assert (own / "00 (new).ipynb").read_text() == "mine before the third"
    assert (own / "00 (new) (new).ipynb").read_text() == "mine before the fourth"
    assert (own / "00 (new) (new) (new).ipynb").read_text() == "zero, fourth version"


def test_an_untouched_lab_is_brought_up_to_date_and_a_new_one_is_added(labs: Path, own: Path) -> None:
    bring(labs, own)
    (labs / "01.ipynb").write_text("one, second version")
    (labs / "02.ipynb").write_text("two")
    assert bring(labs, own) == ["01.ipynb", "02.ipynb"]
    assert (own / "01.ipynb").read_text() == "one, second version"
    assert names(own) == {"00.ipynb", "01.ipynb", "02.ipynb", "images/panel.png"}


def test_a_deleted_lab_comes_back_fresh_and_a_withdrawn_one_stays_with_those_who_have_it(
    labs: Path, own: Path
) -> None:
    bring(labs, own)
    (own / "00.ipynb").unlink()
    (labs / "01.ipynb").unlink()
    assert bring(labs, own) == ["00.ipynb"]
    assert (own / "01.ipynb").read_text() == "one, first version"


def test_a_lab_that_came_another_way_is_not_touched(labs: Path, own: Path) -> None:
    own.mkdir(parents=True)
    (own / "00.ipynb").write_text("from last year's course")
    (own / "01.ipynb").write_text("one, first version")
    bring(labs, own)
    assert (own / "00.ipynb").read_text() == "from last year's course"
    assert (own / "00 (new).ipynb").read_text() == "zero, first version"
    assert not (own / "01 (new).ipynb").exists()


def test_a_rolled_back_lab_goes_back_where_nobody_has_edited_it(labs: Path, own: Path) -> None:
    bring(labs, own)
    (labs / "00.ipynb").write_text("zero, second version")
    bring(labs, own)
    (labs / "00.ipynb").write_text("zero, first version")
    assert bring(labs, own) == ["00.ipynb"]
    assert (own / "00.ipynb").read_text() == "zero, first version"


def test_a_link_in_the_way_is_replaced_and_not_followed(labs: Path, own: Path, tmp_path: Path) -> None:
    bring(labs, own)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("zero, first version")
    (own / "00.ipynb").unlink()
    (own / "00.ipynb").symlink_to(elsewhere)
    (labs / "00.ipynb").write_text("zero, second version")
    bring(labs, own)
    assert elsewhere.read_text() == "zero, first version" and not (own / "00.ipynb").is_symlink()


def test_a_damaged_record_costs_nobody_her_work(labs: Path, own: Path) -> None:
    bring(labs, own)
    (own / ".delivered.json").write_text("{")
    (own / "00.ipynb").write_text("mine")
    bring(labs, own)
    assert (own / "00.ipynb").read_text() == "mine"


def test_a_release_is_open_to_students_whatever_root_keeps_from_them(tmp_path: Path) -> None:
    masters = tmp_path / "masters"
    (masters / "images").mkdir(parents=True)
    (masters / "images" / "ring.svg").write_text("<svg/>")
    small_master(masters)
    before = os.umask(0o077)
    try:
        assert main(["release", str(tmp_path / "out"), "--labs", str(masters)]) == 0
    finally:
        os.umask(before)
    made = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert len(made) > 2 and all(each.stat().st_mode & 0o004 for each in made), made
    assert all(each.stat().st_mode & 0o001 for each in made if each.is_dir())
