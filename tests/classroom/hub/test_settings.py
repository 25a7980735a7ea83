"""What `dlpar hub` refuses, and the passwords of a try."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dlpar.classroom.hub import classroom as hub
from dlpar.classroom.hub.classroom import VARIABLE, BadSettings, Settings, free_port, passwords
from dlpar.cli import main
from dlpar.config.paths import private_folder


def settings(tmp_path: Path, **given) -> Settings:
    asked = {
        "accounts": "listed",
        "users": ("ada",),
        "teachers": (),
        "address": "127.0.0.1",
        "port": 8000,
        "labs": str(tmp_path),
        "folder": str(tmp_path / "hub"),
    }
    return Settings(**asked | given)


def test_nobody_logs_in_weakly_from_another_machine(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.touch()
    tls = {"certificate": str(file), "key": str(file)}
    for address in ("0.0.0.0", "::", "192.168.1.5"):
        with pytest.raises(
            BadSettings, match=r"^--address: got .*, allowed with shared passwords is loopback"
        ):
            settings(tmp_path, address=address)
        with pytest.raises(BadSettings, match="shared passwords"):  # encrypted or not
            settings(tmp_path, address=address, **tls)
    for address in ("127.0.0.1", "::1"):
        settings(tmp_path, address=address)


@pytest.mark.skipif(os.getuid() != 0, reason="system accounts need root")
def test_accounts_of_the_machine_need_encryption_off_loopback(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.touch()
    asked = {"accounts": "system", "users": ("nobody",), "address": "0.0.0.0"}
    with pytest.raises(BadSettings, match="without --certificate and --key is loopback"):
        settings(tmp_path, **asked)
    settings(tmp_path, **asked, certificate=str(file), key=str(file))
    with pytest.raises(BadSettings, match="'root', allowed are accounts other than root"):
        settings(tmp_path, accounts="system", users=("root",))
    with pytest.raises(BadSettings, match="accounts of this machine, in small letters, or @GROUP"):
        settings(tmp_path, accounts="system", users=("nobody-of-that-name",))
    with pytest.raises(
        BadSettings, match="--users: got 'Nobody', allowed are accounts of this machine, in small"
    ):
        settings(tmp_path, accounts="system", users=("Nobody",))  # the hub would take it for another name
    settings(tmp_path, accounts="system", users=("@root", "nobody"))
    with pytest.raises(
        BadSettings, match="--teachers: got '@root', allowed are accounts of this machine, in"
    ):
        settings(tmp_path, accounts="system", users=("nobody",), teachers=("@root",))


def test_accounts_of_the_machine_need_root(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(BadSettings, match="allowed without root is listed"):
        settings(tmp_path, accounts="system")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--port=0"], "--port: got 0, allowed is a whole number from 1 to 65,535"),
        (["--slots=500"], "--slots: got 500, allowed is a whole number from 0 to 200"),
        (["--idle=soon"], "--idle: got 'soon', allowed is a whole number from 1 to 10,080"),
        (
            ["--users=Ada Lovelace"],
            "--users: got 'Ada Lovelace', allowed are names of small letters, digits, - and _",
        ),
        (["--users=../ada"], "--users: got '../ada', allowed are names of small letters"),
        (["--users=", "--teachers="], "--users: got nobody, allowed are names, such as ada,bob"),
        (["--accounts=open"], "--accounts: got 'open', allowed is listed or system"),
        (["--labs=/nowhere"], "--labs: got '/nowhere', allowed is an existing folder of notebooks"),
        ([f"--certificate={__file__}"], "--certificate: got certificate or key, allowed is both or none"),
        (["--config=/dev/zero"], "--config: got '/dev/zero', allowed is a file that can be read"),
        (["--address=here"], "--address: got 'here', allowed is an IP address of this machine"),
    ],
)
def test_a_bad_request_is_one_sentence_and_status_2(flags, sentence, capsys, tmp_path) -> None:
    assert main(["hub", f"--folder={tmp_path}", f"--labs={tmp_path}", *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dlpar hub: {sentence}") and said.count("\n") == 1


def test_students_and_teachers_get_a_random_password_each_and_keep_it_privately(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir(mode=0o755)
    students, teachers = passwords(folder)
    assert students != teachers and len(students) >= 12 and len(teachers) >= 32
    assert passwords(folder) == (students, teachers) != passwords(tmp_path / "another")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


def test_a_teacher_who_is_also_in_the_list_of_users_has_one_password(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dlpar.classroom.hub.classroom.proxy_command", list)
    monkeypatch.setattr(os, "execv", lambda *program: None)
    monkeypatch.setenv(VARIABLE, "")  # set back after the test
    words = ["--users=ada,bob", "--teachers=bob", f"--folder={tmp_path / 'hub'}", f"--labs={tmp_path}"]
    main(["hub", *words, f"--port={free_port()}"])
    said = capsys.readouterr().out
    assert said.count("bob") == 1 and "of the teachers bob: " in said and "of the students ada: " in said


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's range")
def test_ports_of_the_hub_are_none_that_a_connection_gets_meanwhile() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [free_port() for _ in range(50)]
    assert max(ports) < lowest and len(set(ports)) > 40


def test_where_every_port_is_taken_that_is_said_instead_of_looking_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"^ports {port} to {port}: none is free on this machine"):
            free_port(range(port, port + 1))
        assert free_port(first=port) != port
    assert free_port(first=port) == port


@pytest.mark.skipif(os.getuid() != 0, reason="system accounts need root")
def test_a_user_who_left_the_list_loses_her_tokens_unless_a_group_may_have_her(monkeypatch, tmp_path) -> None:
    config = pytest.importorskip("traitlets.config")
    monkeypatch.setattr(hub, "proxy_command", list)
    monkeypatch.setattr(hub, "give_out_slots", lambda c, settings: "")
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    folder = private_folder(tmp_path / "hub")
    with closing(sqlite3.connect(folder / "hub.sqlite")) as database, database:
        database.execute("CREATE TABLE users (name)")
        database.executemany("INSERT INTO users VALUES (?)", [("nobody",), ("eve",)])
    blocked, ports = [], set()
    for accounts, users in (
        ("listed", ("nobody",)),
        ("system", ("nobody",)),
        ("system", ("nobody", "@root")),
    ):
        c = config.Config()
        c.JupyterHub.services, c.JupyterHub.load_roles, c.Spawner.environment = [], [], {}
        hub.configure(c, settings(tmp_path, accounts=accounts, users=users))
        blocked.append(c.Authenticator.blocked_users)
        ports.add(c.JupyterHub.hub_bind_url)
    assert blocked == [{"eve"}, {"eve"}, set()]
    # Servers that outlive a hub find the next one, at a port that no student may open.
    assert len(ports) == 1 and int(ports.pop().rpartition(":")[2]) < 1024


def test_what_runs_in_a_hub_loads_neither_torch_nor_numpy() -> None:
    pytest.importorskip("jupyterhub")
    modules = [
        f"dlpar.classroom.hub.{name}" for name in ("classroom", "student", "teacher", "student_server")
    ]
    program = f"import sys, {', '.join(modules)}; print({{'torch', 'numpy', 'pydantic'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr
