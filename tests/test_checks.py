"""What is said to users who lack a package."""

import re
from pathlib import Path

import pytest

import diptych
from diptych import checks
from diptych.checks import not_installed


def test_the_command_names_packages_that_can_be_installed():
    assert str(not_installed("ONNX models need", "onnx")) == (
        'ONNX models need onnxruntime; install with: pip install "onnxruntime>=1.18"'
    )
    postgres = str(not_installed("an index in PostgreSQL needs", "postgres"))
    assert "needs pgvector and psycopg; " in postgres
    assert '"psycopg[binary]>=' in postgres
    assert str(not_installed("s3://x needs", "zarr", "fsspec")).startswith("s3://x needs fsspec; ")


def test_sources_that_were_not_installed_name_the_package(monkeypatch):
    monkeypatch.setattr(checks, "_requirements", list)
    assert str(not_installed("s3://x needs", "zarr", "fsspec")).endswith(
        "needs fsspec; install with: pip install fsspec"
    )


@pytest.mark.parametrize(
    "path", sorted(Path(diptych.__file__).parent.rglob("*.py")), ids=lambda path: path.name
)
def test_no_message_installs_this_package_by_its_name(path):
    assert not re.search(r"pip install\W+(--upgrade )?diptych", path.read_text("utf-8"))


def test_every_extra_that_is_named_exists():
    for path in Path(diptych.__file__).parent.rglob("*.py"):
        for extra in re.findall(r'not_installed\([^)]*?, "(\w+)"', path.read_text("utf-8")):
            assert any(f'extra == "{extra}"' in line.replace("'", '"') for line in checks._requirements()), (
                path
            )
