"""The words that messages share."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

import diptych
from diptych._checks import ViewNames, count, missing_package_error, with_article


@pytest.mark.parametrize(
    ("n", "noun", "expected"),
    [
        (0, "image", "0 images"),
        (1, "image", "1 image"),
        (2, "training image", "2 training images"),
        (12_000, "query", "12,000 queries"),
        (3, "key", "3 keys"),
        (2, "box", "2 boxes"),
        (2, "sketch", "2 sketches"),
        (2, "fish", "2 fish"),
        (2, "time series", "2 time series"),
        (0, "audio", "0 audio items"),
        (1, "audio", "1 audio item"),
        (2, "Satellitenbild", "2 Satellitenbilds"),
    ],
)
def test_a_count_agrees_with_its_noun(n, noun, expected):
    assert count(n, noun) == expected


def test_names_in_sentences():
    assert with_article("new audio") == "a new audio item"
    assert (ViewNames("audio", "text").caption, ViewNames("molecule", "name").caption) == ("caption", "name")


def test_a_missing_package_error_names_the_install_command():
    assert str(missing_package_error("ONNX models need", "onnx")) == (
        'ONNX models need onnxruntime; install with: pip install "onnxruntime>=1.18"'
    )
    postgres = str(missing_package_error("an index in PostgreSQL needs", "postgres"))
    assert "needs pgvector and psycopg; " in postgres
    assert '"psycopg[binary,pool]>=' in postgres
    assert str(missing_package_error("s3://x needs", "zarr", "fsspec")).startswith("s3://x needs fsspec; ")


def test_a_missing_package_is_named_without_an_installation(monkeypatch):
    def raise_not_found(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", raise_not_found)
    assert str(missing_package_error("s3://x needs", "zarr", "fsspec")).endswith(
        "needs fsspec; install with: pip install fsspec"
    )


def test_no_message_installs_this_package_by_its_name():
    for path in Path(diptych.__file__).parent.rglob("*.py"):
        assert not re.search(r"pip install\W+(--upgrade )?diptych", path.read_text("utf-8")), path


def test_every_extra_in_a_message_exists():
    for path in Path(diptych.__file__).parent.rglob("*.py"):
        for extra in re.findall(
            r'(?:missing_package_error|import_package)\([^)]*?(?:need|needs|install)",\s*"(\w+)"',
            path.read_text("utf-8"),
        ):
            assert any(f'extra == "{extra}"' in line.replace("'", '"') for line in requires("diptych")), path
