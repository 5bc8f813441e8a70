"""The polish of the parts of a fusion."""

import copy

import numpy as np
import pytest

from diptych import InputError
from diptych.cca import _polish
from diptych.fusion import Block, Fusion, Part
from generated_pairs import make_graded_pairs

TASKS = ("search", "annotate")
BLOCKS = {name: Block("none") for name in "abcd"}
PARTS = [Part(("a", "b"), ("c", "d")), Part(("a",), ("c", "d"))]
UNWEIGHTED = {"blocks": BLOCKS, "parts": PARTS, "grid": 3, "weightings": ("none",), "relaxations": (1.0,)}
"""Settings of models that give as much weight to noise as to causes, so that there is much to learn."""


def make_blocks(seed, n):
    x, y, pairing = make_graded_pairs(seed, n)
    return {"a": x[:, :18], "b": x[:, 18:]}, {"c": y[:, :12], "d": y[:, 12:]}, pairing


def fit(n=500, **options):
    model = Fusion(**UNWEIGHTED, bank=200, polish=options.pop("polish", True))
    return model.fit(*make_blocks(1, n), validation=make_blocks(2, n // 2), **options)


@pytest.fixture(scope="module")
def polished():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_polish, "EPOCHS", 14)
        return fit()


@pytest.fixture(scope="module")
def plain():
    return fit(polish=False)


def test_parts_with_a_weight_are_polished_where_it_helps(polished, plain):
    unseen = make_blocks(3, 400)
    for task in TASKS:
        assert all(member.polish is None for member in plain.members_[task])
        assert any(member.polish is not None for member in polished.members_[task])
        for member in polished.members_[task]:
            assert member.use.epochs == (0 if member.polish is None else member.polish.epochs)
        assert polished.score(*unseen, task=task) > plain.score(*unseen, task=task) + 2
        report = polished.selection_.tasks[task]
        tried = [use.epochs for part in report.parts for use in part.tried]
        assert tried.count(0) == len(report.parts)
        assert max(tried) > 0
        assert report.value > plain.selection_.tasks[task].value


def test_a_refit_carries_it_over(polished, plain):
    x, y, _ = make_blocks(3, 60)
    count = polished.moments_.count
    same = copy.copy(polished).refit_moments(polished.moments_, count)
    for task in TASKS:
        before, after = (
            one @ two.T for one, two in (model.transform(x, y, task=task) for model in (polished, same))
        )
        # Inverses and regressions of float32 maps.
        np.testing.assert_allclose(after, before, rtol=0, atol=2e-3)
    more, unseen = make_blocks(4, 500), make_blocks(5, 400)
    moments = polished.moments_ + polished.make_moments(*more)
    refitted = copy.copy(polished).refit_moments(moments, count)
    refitted_plain = copy.copy(plain).refit_moments(
        plain.moments_ + plain.make_moments(*more), plain.moments_.count
    )
    for task in TASKS:
        assert refitted.score(*unseen, task=task) > refitted_plain.score(*unseen, task=task) + 2


def test_on_a_torch_device_it_is_the_same(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(_polish, "EPOCHS", 3)
    here, there = (fit(120, device=device) for device in (None, "cpu"))
    unseen = make_blocks(3, 400)
    for task in TASKS:
        assert abs(there.score(*unseen, task=task) - here.score(*unseen, task=task)) < 3
        for member in there.members_[task]:
            assert member.polish is None or isinstance(member.polish.x, np.ndarray)


def test_a_saved_polish_of_another_size_is_refused(polished, tmp_path):
    config, tensors = polished.pack()
    name = next(name for name in tensors if name.endswith("polish_x"))
    with pytest.raises(InputError, match="polish_x"):
        Fusion.unpack(config, tensors | {name: tensors[name][:-1]}, tmp_path)
