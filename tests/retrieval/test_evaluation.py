"""What ``Retriever.evaluate`` returns and writes, beside what other programs make of the files."""

import csv
from urllib.parse import unquote

import numpy as np
import pytest

from diptych import AWCCA, Fusion, InputError, Retriever
from diptych.data import PairedDataset, PairedViews
from diptych.ranking._metrics import METRICS
from generated_pairs import make_pairs
from latex_check import check_latex

MODELS = {
    "cosine": lambda: AWCCA(params=(1.0, 1.0)),
    "l2": lambda: AWCCA(params=(1.0, 1.0), similarity="l2"),
    "fusion": lambda: Fusion(grid=3, verbose=False),
}
# Readers split lines at any of these.
SPACES = " \t\u00a0\u2003\u0085%\x1c\x00"


@pytest.fixture(scope="module", params=MODELS)
def result(request):
    """The evaluation of a small model on new pairs, whose ids hold what separates fields in other files."""
    (x, y, pairing), (new_x, new_y, new_pairing) = make_pairs(1, n=120)
    retriever = Retriever.from_features(x, y, pairing, model=MODELS[request.param]())
    dataset = PairedDataset(
        tuple(f"{SPACES[i % 8]}imäge {i}.jpg" for i in range(len(new_x))),
        ("",) * len(new_y),
        new_pairing,
        tuple(f"caption {i}%20{SPACES[i % 8]}" for i in range(len(new_y))),
    )
    return retriever.evaluate(PairedViews(dataset, new_x, new_y), None), dataset


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_ir_measures_computes_the_same_from_the_files(result, task, tmp_path):
    measures = pytest.importorskip("ir_measures", reason="ir-measures is not installed")
    found, dataset = result
    found.write_run(tmp_path / "run.trec", task=task, depth=10**6)
    found.write_qrels(tmp_path / "qrels.trec", task=task)
    qrels = list(measures.read_trec_qrels(str(tmp_path / "qrels.trec")))
    ranked = list(measures.read_trec_run(str(tmp_path / "run.trec")))
    asked = {"r@1": "Success@1", "r@5": "Success@5", "r@10": "Success@10", "mrr": "RR", "ndcg@10": "nDCG@10"}
    asked = {name: measures.parse_measure(own) for name, own in asked.items()}
    computed = measures.calc_aggregate(list(asked.values()), qrels, ranked)
    # Its average precision has one cut-off for all queries: that of each query is taken from its own.
    right = {}
    for pair in qrels:
        right[pair.query_id] = right.get(pair.query_id, 0) + 1
    precision = [
        metric.value
        for n in set(right.values())
        for metric in measures.iter_calc([measures.AP @ n], qrels, ranked)
        if right[metric.query_id] == n
    ]
    expected = {name: computed[own] for name, own in asked.items()} | {"map@r": np.mean(precision)}
    # trec_eval reads scores as float32; none of these are so close that their order depends on it.
    assert {name: found[task][name] for name in expected} == pytest.approx(
        {name: 100 * value for name, value in expected.items()}, rel=1e-9
    )


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_a_run_has_the_best_items_and_ids_agree_in_both_files(result, task, tmp_path):
    found, dataset = result
    found.write_run(tmp_path / "run.trec", task=task, depth=3, tag="mine")
    found.write_qrels(tmp_path / "qrels.trec", task=task)
    lines = [line.split() for line in (tmp_path / "run.trec").read_text("utf-8").splitlines()]
    assert all(len(fields) == 6 and fields[1] == "Q0" and fields[5] == "mine" for fields in lines)
    assert [int(fields[3]) for fields in lines] == [1, 2, 3] * (len(lines) // 3)
    scores = np.array([float(fields[4]) for fields in lines]).reshape(-1, 3)
    assert (np.diff(scores, axis=1) <= 0).all()
    qrels = [line.split() for line in (tmp_path / "qrels.trec").read_text("utf-8").splitlines()]
    images = [dataset.image_ids[row] for row in dataset.pairing]
    pairs = set(zip(dataset.caption_ids, images, strict=True))
    if task == "annotate":
        pairs = {pair[::-1] for pair in pairs}
    assert {(unquote(query), unquote(item)) for query, _, item, _ in qrels} == pairs
    assert {fields[0] for fields in lines} == {fields[0] for fields in qrels}
    items = dataset.image_ids if task == "search" else dataset.caption_ids
    assert {unquote(fields[2]) for fields in lines} <= set(items)
    first = sum((unquote(fields[0]), unquote(fields[2])) in pairs for fields in lines if fields[3] == "1")
    assert 100 * first / (len(lines) // 3) == pytest.approx(found[task]["r@1"])


def test_csv_and_latex_show_what_was_measured(result, tmp_path):
    found, _ = result
    found.write_csv(tmp_path / "a.csv")
    found.write_latex(tmp_path / "a.tex")
    limits = found.intervals()
    with open(tmp_path / "a.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["metric"]) for row in rows] == [
        (task, name) for task in ("search", "annotate") for name in METRICS
    ]
    for row in rows:
        own = found[row["task"]][row["metric"]], *limits[row["task"]][row["metric"]]
        assert tuple(float(row[key]) for key in ("value", "low", "high")) == own
        assert own[1] <= own[0] <= own[2]
    text = (tmp_path / "a.tex").read_text("utf-8")
    check_latex(text)
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1
    low, high = limits["annotate"]["mrr"]
    assert f"{found['annotate']['mrr']:.1f} [{low:.1f}, {high:.1f}] \\\\" in text


def test_intervals_depend_on_the_seed_alone(result):
    found, _ = result
    assert found.intervals(50) == found.intervals(50)
    assert found.intervals(50) != found.intervals(50, random_state=1)
    wide, narrow = found.intervals(200), found.intervals(200, confidence=0.5)
    assert np.diff(narrow["search"]["mrr"]) < np.diff(wide["search"]["mrr"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.write_run("run", task="find"), "'search', 'annotate'"),
        (lambda e: e.write_run("run", depth=0), "depth"),
        (lambda e: e.write_run("run", tag="my run"), "not one word"),
        (lambda e: e.write_qrels("run", task="find"), "'search', 'annotate'"),
        (lambda e: e.intervals(confidence=2), "confidence"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_written(result, call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        call(result[0])
    assert not list(tmp_path.iterdir())


def test_an_empty_id_is_refused(tmp_path):
    (x, y, pairing), _ = make_pairs(0)
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(params=(1.0, 1.0)))
    dataset = PairedDataset(("", *map(str, range(1, len(x)))), ("",) * len(y), pairing)
    with pytest.warns(UserWarning, match="training pairs"):
        found = retriever.evaluate(PairedViews(dataset, x, y), None)
    with pytest.raises(InputError, match="an id is empty"):
        found.write_run(tmp_path / "run")
    assert not list(tmp_path.iterdir())
