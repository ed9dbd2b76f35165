import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from apps.people.roles import ACTIONS, ROLES, actions_of, allows, as_json, main, roles_that_may

READ = {"view"}
OPERATE = READ | {"probe", "plan", "launch", "relaunch", "cancel", "stop", "test", "benchmark"}
EDIT = OPERATE | {"edit_nodes", "edit_recipes", "edit_deployments", "clear", "provision"}
EXPECTED = {
    "viewer": READ,
    "auditor": READ | {"export_audit"},
    "operator": OPERATE,
    "editor": EDIT,
    "admin": EDIT
    | {
        "approve_recipes",
        "edit_people",
        "edit_credentials",
        "edit_host_keys",
        "edit_policies",
        "edit_tokens",
        "export_audit",
    },
}


@pytest.mark.parametrize("role", list(EXPECTED))
def test_the_table_written_down_a_second_time(role: str) -> None:
    assert {action for action in ACTIONS if allows(role, action)} == EXPECTED[role]
    assert set(actions_of(role)) == EXPECTED[role]


def test_no_other_roles_and_no_action_that_nobody_may() -> None:
    assert set(ROLES) == set(EXPECTED)
    assert all(roles_that_may(action) for action in ACTIONS)


@pytest.mark.parametrize(
    ("role", "action"), [("", "view"), ("root", "view"), ("admin", "fly"), ("admin", ""), ("system", "view")]
)
def test_what_is_not_in_the_table_is_a_no(role: str, action: str) -> None:
    assert not allows(role, action)


def test_json() -> None:
    out = io.StringIO()
    assert main(["--json"], io.BytesIO(), out) == 0
    printed = json.loads(out.getvalue())
    assert printed == as_json()
    assert {role: set(may) for role, may in printed["roles"].items()} == EXPECTED


def test_text_and_a_wrong_argument() -> None:
    out = io.StringIO()
    assert main([], io.BytesIO(), out) == 0
    assert "relaunch" in out.getvalue()
    assert main(["--yaml"], io.BytesIO(), out) == 2


def test_the_command_needs_neither_settings_nor_database(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "manage.py"), "roles", "--json"],
        env={"VAR": str(tmp_path / "none"), "DJANGO_SETTINGS_MODULE": "nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["roles"]["viewer"] == ["view"]
    assert not (tmp_path / "none").exists()
