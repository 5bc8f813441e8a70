import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sklearn.base import clone

from diptych import AWCCA, InputError
from diptych.cca import _canonical
from diptych.cca._weighting import to_unit_length
from diptych.fusion import Block, Fusion, Part
from diptych.ranking import mean_recall, recall_at_k
from generated_pairs import make_fused_blocks, make_pairs
from saved_files import files_of, seal_config
from tolerance import assert_close

TASKS = ("search", "annotate")


def blocks(seed=0):
    """Training and validation pairs of two blocks on either side, each seeing the cause through noise."""
    return make_fused_blocks(2 * seed, 120, noise=2.0), make_fused_blocks(2 * seed + 1, 120, noise=2.0)


@pytest.fixture(scope="module")
def fitted():
    training, validation = blocks()
    return Fusion(grid=6, bank=150).fit(*training, validation=validation)


@pytest.mark.parametrize("widths", [(12, 8), (8, 12)])
def test_a_fusion_of_one_part_is_that_part_and_decomposes_no_t(monkeypatch, widths):
    training, validation = make_pairs(4, n=160, m_x=widths[0], m_y=widths[1])
    calls, real = [], _canonical.leading_components
    monkeypatch.setattr(_canonical, "leading_components", lambda *given: calls.append(1) or real(*given))
    alone = Fusion("plain", blocks={"x": Block("none"), "y": Block("none")}, precision="float64")
    alone.fit(*training, validation=validation)
    assert calls == []
    scaled, held = (
        (
            *(view * alone.geometry_[name][name].scale for name, view in zip("xy", pairs, strict=False)),
            pairs[2],
        )
        for pairs in (training, validation)
    )
    model = AWCCA(solver="gram").fit(*scaled, validation=held)
    for task in TASKS:
        assert alone.members_[task][0].dimension == 8
        expected = [to_unit_length(vectors) for vectors in model.transform(*held[:2], task=task)]
        x, y = alone.transform(*validation[:2], task=task)
        np.testing.assert_allclose(x @ y.T, expected[0] @ expected[1].T, atol=1e-4)
        assert alone.score(*validation, task=task) == pytest.approx(model.score(*held, task=task))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, x, y, pairing: model.items({"a": x["a"]}), "missing"),
        (lambda model, x, y, pairing: Fusion().fit({"a": x["a"], "b": x["b"][:5]}, y, pairing), "rows"),
        (lambda model, x, y, pairing: Fusion().fit({"a": x["a"]}, {"a": y["c"]}, pairing), "the same name"),
        (lambda model, *pairs: Fusion(blocks={"z": Block()}).fit(*pairs), "do not have"),
        (lambda model, x, *y: Fusion().fit(x, *y, validation=({"a": x["a"]}, *y)), "other blocks"),
        (lambda model, *pairs: Fusion("worst").fit(*pairs), "preset"),
        (lambda model, *pairs: Fusion(hubness=("magic",)).fit(*pairs), "hubness"),
        (lambda model, *pairs: Fusion(parts=[Part(("a",), ("zzz",))]).fit(*pairs), "Part"),
        (lambda model, *pairs: Fusion().fit(*pairs, validation=3), "validation"),
        (lambda model, *pairs: model.transform(), "neither"),
        (lambda model, *pairs: Block("rot13"), "normalize"),
        (lambda model, x, y, pairing: Fusion().fit({"a": np.ones((120, 3))}, y, pairing), "the same"),
    ],
)
def test_wrong_inputs_are_refused(fitted, call, message):
    with pytest.raises(InputError, match=message):
        call(fitted, *blocks()[0])


def test_never_worse_on_validation_than_the_best_part():
    for seed in range(2):
        training, validation = blocks(seed)
        model = Fusion(grid=5, refit=False, polish=seed == 0).fit(*training, validation=validation)
        for task in TASKS:
            chosen = model.selection_.tasks[task]
            assert chosen.value >= max(part.value for part in chosen.parts)
            # What was promised is what the fitted model gives where no query is too far for the correction.
            model.hubness_[task] = replace(model.hubness_[task], gate=None)
            ranks = model.ranks(*validation, task=task)
            assert mean_recall(ranks) == pytest.approx(chosen.value, abs=0.01)
            plain = max(u.recall["r@1"] for p in chosen.parts for u in p.tried)
            assert chosen.recall["r@1"] > plain - 5


def test_vectors_rank_by_inner_product(fitted):
    _, (x, y, pairing) = blocks()
    for task in TASKS:
        for_x, for_y = fitted.transform(x, y, task=task)
        items, queries = (for_x, for_y) if task == "search" else (for_y, for_x)
        assert_close(fitted.items(x if task == "search" else y, task), items, 14 + 8)
        assert_close(fitted.queries(y if task == "search" else x, task), queries, 12 + 9)
        assert items.dtype == np.float32
        weights = [member.weight for member in fitted.members_[task]]
        assert sum(weights) == pytest.approx(1.0)
        norms = np.linalg.norm(queries[:, :-1], axis=1)
        np.testing.assert_allclose(norms, np.sqrt(len(weights)), rtol=1e-5)
        assert np.all((queries[:, -1] >= 0) & (queries[:, -1] <= 1))
        if task == "search":
            scores = queries @ items.T
            direct = 1 + (scores > scores[np.arange(len(pairing)), pairing][:, None]).sum(axis=1)
            assert recall_at_k(fitted.ranks(x, y, pairing), 1) == pytest.approx(recall_at_k(direct, 1), abs=1)


def test_the_bank_is_of_training_queries_and_no_query_changes_an_item():
    training, (x, y, pairing) = blocks()
    fitted = Fusion(parts="together", grid=6, bank=150, hubness=("csls",), polish=False)
    fitted.fit(*training, validation=(x, y, pairing))
    assert len(fitted.hubness_["search"].bank) == 150
    assert len(fitted.hubness_["annotate"].bank) == len(training[0]["a"])
    few = fitted.items({k: v[:5] for k, v in x.items()})
    # Features, then a bank of 150 queries.
    assert_close(fitted.items(x)[:5], few, 14 + 8 + 150)


def test_geometry_is_chosen_on_validation(rng):
    training, validation = make_pairs(0, n=300, noise=0.3)
    # Rows of wildly different lengths: direction is all that counts.
    spoil = [np.exp(2 * rng.normal(size=(len(pairs[0]), 1))) for pairs in (training, validation)]
    training = (training[0] * spoil[0], *training[1:])
    validation = (validation[0] * spoil[1], *validation[1:])
    model = Fusion(grid=5, blocks={"y": Block("none")}, polish=False).fit(*training, validation=validation)
    assert model.geometry_["x"]["x"].normalize in ("unit", "sqrt-unit")
    assert set(model.selection_.geometry["x"].r_at_1) == {"none", "unit", "sqrt-unit"}
    assert model.geometry_["y"]["y"].normalize == "none"


def test_pieces_are_normalised_each_by_itself(rng):
    training, validation = make_pairs(0)
    model = Fusion("plain", blocks={"x": Block("unit", pieces=2)}, grid=5)
    shape = model.fit(*training, validation=validation).geometry_["x"]["x"]
    rows = shape.apply(training[0]) / shape.scale
    np.testing.assert_allclose(np.linalg.norm(rows[:, :7], axis=1), 1.0)
    np.testing.assert_allclose(np.linalg.norm(rows[:, 7:], axis=1), 1.0)
    with pytest.raises(InputError, match="pieces"):
        Fusion(blocks={"x": Block("unit", pieces=3)}).fit(*training, validation=validation)


def test_without_validation_a_share_is_held_out_and_all_is_refitted():
    training, validation = blocks()
    model = Fusion(grid=5, refit=False, polish=False).fit(*training)
    assert model.selection_.refitted
    assert "18 of 120 rows" in model.selection_.validation
    assert model.score(*validation) > 10


def test_refitting_uses_both(fitted):
    training, validation = blocks()
    part = Fusion(grid=6, bank=150, refit=False, polish=False).fit(*training, validation=validation)
    assert not part.selection_.refitted
    first, second = (m.members_["search"][0].linear.x_mean for m in (part, fitted))
    assert np.abs(first - second).max() > 1e-4


def test_conventions(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    msgspec.json.encode(fitted.selection_)
    assert Fusion("plain").fit(*make_pairs(0)[0]).score(*make_pairs(0)[1]) > 0


def test_queries_unlike_the_training_queries_are_not_corrected():
    training, validation = blocks()
    lengths_count = dict.fromkeys("abcd", Block("none"))
    model = Fusion(grid=6, bank=150, blocks=lengths_count, hubness=("csls",), refit=False)
    model.fit(*training, validation=validation)
    for task, view in (("search", validation[1]), ("annotate", validation[0])):
        shares = model.queries(view, task)[:, -1]
        # A gate begins to close at the 90th percentile of the validation queries.
        assert 0.8 < np.mean(shares > 0.999) < 0.97
        far = {name: 10 * rows for name, rows in view.items()}
        assert not np.any(model.queries(far, task)[:, -1])


def test_saved_and_loaded(fitted, tmp_path):
    _, (x, y, _) = blocks()
    fitted.save(tmp_path / "model")
    again = Fusion.load(tmp_path / "model")
    for task in TASKS:
        for mine, its in zip(
            fitted.transform(x, y, task=task), again.transform(x, y, task=task), strict=True
        ):
            np.testing.assert_array_equal(mine, its)
    assert again.selection_ == fitted.selection_
    assert not hasattr(again, "moments_")
    again.save(tmp_path / "model")


def _put(config, place, value):
    """Set the value at a place of a config, such as ``"tasks.search.members.0.weight"``."""
    *parents, last = [int(key) if key.isdecimal() else key for key in place.split(".")]
    for key in parents:
        config = config[key]
    config[last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("tasks", {}, "expected the views x and y and the tasks"),
        ("tasks.search.members", [], "tasks.*: a task has no members"),
        ("tasks.search.members", "abc", "tasks.*members: Expected `array`, got `str`"),
        ("tasks.search.members.0.weight", float("inf"), "not valid JSON"),
        ("tasks.search.members.0.weight", 0.0, "a member has the weight 0.0"),
        ("tasks.search.members.0.params", None, "has the γ None"),
        ("tasks.search.members.0.part.x", ["zzz"], "unknown blocks"),
        ("tasks.search.members.0.use.colour", "red", "unknown field `colour`"),
        ("tasks.search.correction.kind", "magic", "correction.kind: Invalid enum value 'magic'"),
        ("tasks.search.gate", [2.0, 2.0], "a gate closes between"),
        ("geometry.x.a.normalize", "rot13", "geometry.*normalize='rot13'"),
        ("geometry.x.a.width", 7, "expected finite numbers of shape"),
        ("geometry.x.a.slices", 0, "block .* has 0 slices"),
        ("geometry.x.a.scale", True, "scale: Expected `float`, got `bool`"),
        ("preset", "worst", "preset='worst' is unknown"),
        ("selection.refitted", "yes", "selection.refitted: Expected `bool`, got `str`"),
        ("selection.colour", "red", "unknown field `colour`"),
    ],
)
def test_a_damaged_config_is_refused_with_file_and_key(fitted, tmp_path, place, value, message):
    fitted.save(tmp_path / "model")
    path = files_of(tmp_path / "model") / "config.json"
    config = json.loads(path.read_text("utf-8"))
    _put(config, place, value)
    path.write_text(json.dumps(config).replace("Infinity", "1e999"), "utf-8")
    seal_config(tmp_path / "model")
    with pytest.raises(InputError, match=message) as caught:
        Fusion.load(tmp_path / "model")
    assert str(files_of(tmp_path / "model")) in str(caught.value)


def test_missing_or_damaged_arrays_are_refused(fitted):
    config, tensors = fitted.pack()
    for name, change in {
        "search.bank": lambda a: a[:0],
        "search.0.x_map": lambda a: a[:, :-1],
        "annotate.0.y_mean": lambda a: a * np.nan,
    }.items():
        with pytest.raises(InputError, match="model.safetensors"):
            Fusion.unpack(config, {**tensors, name: change(tensors[name])}, Path("model.safetensors"))
        with pytest.raises(InputError, match=f"model.safetensors has no '{name}'"):
            Fusion.unpack(config, {k: v for k, v in tensors.items() if k != name}, Path("model.safetensors"))
