"""``diptych list``."""

import json
from datetime import date

import numpy as np
import pytest

from commands import refused, run, run_json
from diptych import AWCCA, Retriever


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Twelve items with dates, and their captions."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 5)), rng.normal(size=(12, 4))
    about = {f"i{n}": {"n": n, "taken": date(2020, 1, 1 + n % 5)} for n in range(10)}
    names, captions = [f"i{n}" for n in range(12)], [f"caption {n}" for n in range(12)]
    options = {"model": AWCCA(params=(1.0, 1.0)), "metadata": about}
    with pytest.warns(UserWarning, match="12 training pairs are very few"):
        retriever = Retriever.from_features(x, y, ids=names, captions=captions, **options)
    retriever.save(folder := tmp_path_factory.mktemp("list") / "model")
    return folder


def test_a_page_in_order_of_a_value(model):
    shown = run("list", model, "--view", "image", "--where", "n >= 2", "--order-by=-taken", "-k", 3)
    assert shown.stdout.splitlines() == [
        "i4  n = 4, taken = 2020-01-05",
        "i9  n = 9, taken = 2020-01-05",
        "i3  n = 3, taken = 2020-01-04",
        "3 of 8 images",
    ]
    page = run_json("list", model, "--offset", 22, "--limit", 5)
    assert (page["total"], page["more"]) == (24, False)
    assert page["items"] == [
        {"id": f"i{n}#0", "view": "text", "text": f"caption {n}", "image": f"i{n}"} for n in (10, 11)
    ]
    assert run("list", model, "--where", "n = 100").stdout == "0 of 0 items\n"
    assert "caption 11" in run("list", model, "-k", 100).stdout
    assert json.loads(run("list", model, "-k", 1, "--json").stdout)["more"] is True


def test_wrong_options_are_named(model):
    assert "--order-by names the key 'take', which no item has" in refused(
        "list", model, "--order-by", "take"
    )
    assert "--view 'leaf' is unknown" in refused("list", model, "--view", "leaf")
    assert "the filter 'n >' is wrong" in refused("list", model, "--where", "n >")
