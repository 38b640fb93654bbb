"""`marin doctor` names what is missing and fails only where the core does."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marin import doctor
from marin.cli.app import app


def test_the_core_works_here_and_every_check_is_in_the_answer() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert answer["works"]
    names = {check["name"] for check in answer["checks"]}
    assert {"python", "native module", "packages", "jax", "cuda", "disk", "memory"} <= names
    assert {f"extra {extra}" for extra in doctor.EXTRAS} <= names


def test_a_missing_package_of_the_core_is_named_with_its_remedy_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_CORE", ("numpy", "no_such_module"))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    packages = next(c for c in json.loads(done.stdout)["checks"] if c["name"] == "packages")
    assert packages["state"] == "missing"
    assert packages["remedy"] == "pip install no_such_module"


def test_every_extra_that_it_advises_exists() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert set(doctor.EXTRAS) <= set(project["project"]["optional-dependencies"])
