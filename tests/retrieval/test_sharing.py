"""Retrievers that share a folder or a database: who sees what the others have changed."""

import numpy as np
import pytest

from diptych import InputError, Retriever
from diptych.retrieval.stores.postgres import _store as postgres_store

pytestmark = pytest.mark.filterwarnings("ignore:.*lies? far")


@pytest.fixture(params=["folder", "mapped folder", "postgresql"])
def shared(request, make, tmp_path):
    """A retriever on features; ``open`` is what another process does, ``fit`` puts others in its place."""
    folder = tmp_path / "model"
    if request.param == "postgresql":
        address = request.getfixturevalue("fresh")()
        made = make(index=address)
        made.fit = lambda **options: make(**options, index=address)
        made.open = lambda: Retriever.connect(address)
    else:

        def fit(**options):
            made = make(**options)
            made.retriever.save(folder)
            return made

        made = fit()
        made.fit, made.open = fit, lambda: Retriever.load(folder, mmap=request.param == "mapped folder")
    return made


def add(retriever, made, name, **options):
    retriever.add(made.x[:1], made.y[:1], ids=[name], **options)


def ids(hits):
    return [hit.id for hit in hits]


def test_each_sees_what_the_others_have_changed_at_its_next_search(shared, same_answers):
    one, two, first = shared.open(), shared.open(), shared.retriever
    add(one, shared, "new", metadata={"new": {"by": "one"}})
    assert ids(two.search(shared.y[0], k=99, where={"by": "one"})) == ["new"]
    same_answers(one, two, shared.x[:5], shared.y[:5], k=99)
    assert {"new", "new#0"} <= {item.id for item in first.store.items(new=True)}
    two.remove(["3", "new"])
    assert one.item("new") is first.item("new#0") is None
    for use in (lambda: one.search(shared.y[0], where=["new"]), lambda: one.remove("new")):
        with pytest.raises(InputError, match="there is no item 'new'"):
            use()
    add(two, shared, "3")
    assert one.search(shared.y[0], k=99, where=["3"])[0].id == "3"
    assert len(one.search(shared.y[0], k=99)) == len(two.search(shared.y[0], k=99)) == 60
    assert one.store.count() == shared.open().store.count()


def test_an_id_is_given_once(shared):
    one, two = shared.open(), shared.open()
    add(one, shared, "taken")
    with pytest.raises(InputError, match="'taken' is in the index already"):
        add(two, shared, "taken")
    assert one.add(shared.x[:1]) != two.add(shared.x[:1])  # numbers are chosen
    assert two.store.count("image") == 63


def test_refits_are_noticed_by_the_next_call_of_every_kind(shared, monkeypatch):
    monkeypatch.setattr(postgres_store, "KINDS_KEPT", 0)  # otherwise the offset follows a minute later
    one, x, y = shared.open(), shared.x, shared.y
    one.add(x[:1], ids=["old"], metadata={"old": {"kind": "old"}})
    calls = {
        "search": lambda r: r.search(y[0], k=5),
        "filtered": lambda r: r.search(y[0], k=5, where={"kind": "new"}),
        "function": lambda r: r.search(y[0], k=5, where=lambda item: item.id.startswith("new")),
        "ids": lambda r: r.search(y[0], k=5, where=["1", "2"]),
        "annotate": lambda r: r.annotate(x[0], k=5),
        "similar": lambda r: r.similar(image=x[0], k=5),
        "embed": lambda r: r.embed_images(x[:3]).tolist(),
        "info": lambda r: r.info(),
    }
    others = {name: shared.open() for name in calls}
    before = {name: call(others[name]) for name, call in calls.items()}
    rng, names = np.random.default_rng(0), [f"new {i}" for i in range(30)]
    more = x[:30] + rng.normal(size=(30, 8)), y[:30] + rng.normal(size=(30, 7))
    one.add(*more, ids=names, metadata={name: {"kind": "new"} for name in names})
    for _ in range(3):
        one.refit()
    for name, call in calls.items():
        result = call(others[name])
        assert result == call(one), name
        assert result != before[name], name


def test_a_refit_learns_from_the_pairs_of_all_and_from_each_once(shared, same_answers):
    one, two = shared.open(), shared.open()
    add(one, shared, "a")
    add(two, shared, "b")
    before = two.version
    one.refit()
    assert one.info()["facts"]["refitted"] == {"pairs": 122, "before": 120}
    same_answers(two, one, shared.x[:10], shared.y[:20])
    assert two.version == one.version != before
    add(two, shared, "c")
    two.refit()
    assert one.info()["facts"]["refitted"] == {"pairs": 123, "before": 122}
    same_answers(shared.open(), two, shared.x[:10], shared.y[:20])


def test_a_fit_replaces_everything_also_with_features_of_another_width(shared):
    mine = shared.open()
    add(mine, shared, "mine")
    newer = shared.fit(seed=2, shape={"m_x": 9})
    assert shared.open().item("mine") is None
    assert len(mine.annotate(newer.x[0], k=999)) == 120
    with pytest.raises(InputError, match="expects 9|has 8 features"):
        mine.annotate(shared.x[0])
    mine.add(newer.x[:1], ids=["again"])
    assert newer.retriever.item("again") is not None
