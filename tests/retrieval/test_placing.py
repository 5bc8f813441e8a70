"""Libraries in which some images have captions and others have none: places, offsets and probabilities."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, Fusion, Retriever
from diptych.data import PairedDataset, PairedViews, open_features, read_pairs
from diptych.encoders import FunctionEncoder
from diptych.retrieval._placing import Offset, choose_offset
from tolerance import assert_close, rounding

TASKS = ("search", "annotate")
PLACED = rounding(np.float32, 40, condition=10)

pytestmark = pytest.mark.filterwarnings("ignore:.*lies? far", "ignore:these are training pairs")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def place(row, partners):
    """Where an item lies by hand, from its vector and those of its partners."""
    if not len(partners):
        return unit(row)
    return unit(3 * unit(row) + len(partners) * unit(unit(np.array(partners)).mean(axis=0)))


def read_vectors(retriever, task):
    blocks = retriever.store.vectors(task, retriever.version)
    return {item.id: row for block in blocks for item, row in zip(block.items, block.vectors, strict=True)}


class Library:
    """A retriever, and what is in it by hand: rows of images, and images and rows of captions, by their ids.

    40 images with two captions each were fitted, and three without captions were added. ``x`` and ``y`` have
    further pairs.
    """

    def __init__(self, x, y, pairing, **options):
        ids, names = [str(i) for i in range(40)], [f"{i // 2}#{i % 2}" for i in range(80)]
        self.x, self.y, self.model = x, y, AWCCA(params=(2.0, 3.0)).fit(x[:40], y[:80], pairing[:80])
        self.retriever = Retriever.from_features(
            x[:40], y[:80], pairing[:80], ids=ids, caption_ids=names, model=self.model, **options
        )
        self.retriever.add(x[40:43], ids=["a", "b", "c"])
        self.images = {**dict(zip(ids, x, strict=False)), "a": x[40], "b": x[41], "c": x[42]}
        self.captions = {name: (name.split("#")[0], row) for name, row in zip(names, y, strict=False)}

    def assert_placed(self, tasks=TASKS):
        for task in tasks:
            images = {
                name: self.model.transform(row[None], task=task)[0] for name, row in self.images.items()
            }
            captions = {
                name: (image, self.model.transform(y=row[None], task=task)[0])
                for name, (image, row) in self.captions.items()
            }
            if task == "search":
                rows, pairs = images, captions.values()
                partners = {name: [row for image, row in pairs if image == name] for name in images}
            else:
                rows = {name: row for name, (_, row) in captions.items()}
                partners = {name: [images[image]] if image else [] for name, (image, _) in captions.items()}
            stored = read_vectors(self.retriever, task)
            assert stored.keys() == rows.keys()
            if not self.retriever.store.address:  # a database may count late
                n_paired = sum(map(bool, partners.values()))
                view = "image" if task == "search" else "text"
                assert self.retriever.store.count_kinds(view) == (n_paired, len(rows) - n_paired)
            for name, row in rows.items():
                further = -0.1 if len(partners[name]) else 0.0
                expected = [*place(row, partners[name]), further]
                np.testing.assert_allclose(stored[name], expected, rtol=0, atol=PLACED, err_msg=name)


@pytest.fixture(params=["memory", "folder", "postgresql"])
def library(request, views, tmp_path):
    options = {"index": request.getfixturevalue("fresh")()} if request.param == "postgresql" else {}
    library = Library(*views(n=50), **options)
    if request.param == "folder":
        library.retriever.save(tmp_path / "model")
    return library


def learn(library):
    """A caption of an image that had none, and another of one that had two."""
    for image, row in (("a", library.y[90]), ("7", library.y[91])):
        (name,) = library.retriever.learn(row, right=image)
        library.captions[name] = image, row


def update_caption(library):
    library.retriever.update("7#1", features=library.y[92])
    library.captions["7#1"] = "7", library.y[92]


def remove_captions(library):
    """One of two captions of an image, and both of another."""
    library.retriever.remove(["7#1", "8#0", "8#1"])
    for name in ("7#1", "8#0", "8#1"):
        del library.captions[name]


def remove_image(library):
    library.retriever.remove("7")
    del library.images["7"], library.captions["7#0"], library.captions["7#1"]


def add_with_captions(library):
    library.retriever.add(
        library.x[43:45], library.y[86:89], pairing=[0, 0, 1], ids=["d", "e"], caption_ids=["p", "q", "r"]
    )
    library.images |= {"d": library.x[43], "e": library.x[44]}
    library.captions |= {name: ("dde"[at], library.y[86 + at]) for at, name in enumerate("pqr")}


def detach_caption(library):
    """A text without an image in place of a caption."""
    library.retriever.add(captions=library.y[93:94], caption_ids=["7#0"], on_conflict="replace")
    library.captions["7#0"] = None, library.y[93]


def replace_with_captions(library):
    """An image and one of its captions again, with a further one; its other caption stays."""
    x, y = library.x[45], library.y[94:96]
    library.retriever.add(x, y, pairing=[0, 0], ids=["7"], caption_ids=["7#0", "new"], on_conflict="replace")
    library.images["7"] = x
    library.captions |= {"7#0": ("7", y[0]), "new": ("7", y[1])}


def update_image(library):
    library.retriever.update("7", features=library.x[46])
    library.images["7"] = library.x[46]


def replace_image(library):
    library.retriever.add(library.x[47], ids=["7"], on_conflict="replace")
    library.images["7"] = library.x[47]


CHANGES = [learn, update_caption, remove_captions, remove_image, add_with_captions, detach_caption]


def test_items_lie_where_they_and_their_partners_say(library):
    library.assert_placed()
    vectors = read_vectors(library.retriever, "search")
    alone = library.retriever.fitted.projectors["search"].items(library.x[40:43])
    np.testing.assert_allclose([vectors[name][:-1] for name in "abc"], alone, rtol=0, atol=PLACED)
    moved = np.stack([vectors[str(i)][:-1] for i in range(40)]) - library.retriever.embed_images(
        library.x[:40]
    )
    assert np.abs(moved).max(axis=1).min() > 100 * PLACED  # captions do move an image


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_captions_moves_their_images(library, change):
    change(library)
    library.assert_placed()


@pytest.mark.parametrize("change", [update_image, replace_image, replace_with_captions])
def test_another_image_lies_between_itself_and_the_captions_that_stay(library, change):
    change(library)
    library.assert_placed(["search"])
    library.retriever.refit()
    library.model = library.retriever.fitted.model
    library.assert_placed()


def test_a_refit_places_all_items_as_a_new_library_does(library):
    for change in (learn, add_with_captions, remove_captions):
        change(library)
    library.retriever.refit()
    library.model = library.retriever.fitted.model
    library.assert_placed()
    new = Retriever.from_model(library.model)
    library.retriever = new
    names = list(library.images)
    captions, owners = list(library.captions), [image for image, _ in library.captions.values()]
    new.add(
        np.array(list(library.images.values())),
        np.array([row for _, row in library.captions.values()]),
        pairing=[names.index(owner) for owner in owners],
        ids=names,
        caption_ids=captions,
    )
    library.assert_placed()


LETTERS = "abcdefghij"


def count_letters(texts):
    return np.array([[text.count(letter) for letter in LETTERS] for text in texts], float)


def test_empty_captions_are_no_partners_and_a_refit_encodes_what_it_places(rng):
    """A retriever of words and phrases that keeps no features."""
    words = ["".join(rng.choice(list(LETTERS), 30)) for _ in range(60)]
    phrases = ["".join(rng.permutation(list(word))[:20]) for word in words]
    phrases[5] = phrases[6] = " "
    pairs = PairedDataset(tuple(words), (*phrases, "fed bad face"), (*range(60), 6), paths=tuple(words))
    encoder = FunctionEncoder(count_letters, "letters", "texts")
    options = {"model": AWCCA(params=(2.0, 3.0)), "keep_features": False, "views": ("word", "phrase")}
    retriever = Retriever(encoder, count_letters, **options).fit(pairs)
    retriever.learn("head bead", right=words[5])
    captions = {word: [phrase] for word, phrase in zip(words, phrases, strict=True)}
    captions |= {words[5]: [], words[6]: ["fed bad face"]}

    def assert_placed():
        model = retriever.fitted.model
        vectors = read_vectors(retriever, "search")
        for word, its in captions.items():
            row = model.transform(count_letters([word]))[0]
            expected = place(row, model.transform(y=count_letters(its)) if its else ())
            np.testing.assert_allclose(vectors[word][:-1], expected, rtol=0, atol=PLACED, err_msg=word)
            assert vectors[word][-1] == pytest.approx(-0.1 if its else 0.0)
        assert read_vectors(retriever, "annotate")[f"{words[5]}#0"][-1] == 0

    assert_placed()  # "head bead" waits for the refit
    retriever.refit()
    captions[words[5]] = ["head bead"]
    assert_placed()


def test_stored_captions_do_not_change_an_evaluation(views):
    library = Library(*views(n=50))
    x, y, owners = library.x[43:], library.y[86:], np.repeat(np.arange(7), 2)
    pairs = PairedDataset(tuple("defghij"), ("",) * 14, owners)
    before = library.retriever.evaluate(PairedViews(pairs, x, y))
    library.retriever.add(x, y, pairing=owners, ids=list("defghij"))
    assert library.retriever.evaluate(PairedViews(pairs, x, y)) == before


counts = st.integers(1, 10_000)


@given(counts, counts, counts, st.floats(-0.2, 0.2))
def test_an_offset_follows_the_library(n_paired, n_alone, more, level):
    offset = Offset(level, 0.05, 0.04, 300, 100)
    by_hand = level + 0.4 * (0.05 * np.log(n_paired / 300) - 0.04 * np.log(n_alone / 100))
    value = offset.compute(n_paired, n_alone)
    assert value == pytest.approx(max(0.0, by_hand))
    assert offset.compute(n_paired + more, n_alone) >= value >= offset.compute(n_paired, n_alone + more) >= 0
    if by_hand > 0:
        assert offset.compute(n_paired + more, n_alone) > value > offset.compute(n_paired, n_alone + more)
    assert offset.compute(0, n_alone) == offset.compute(n_paired, 0) == 0


def draw(n, captions=3, hidden=12, seed=1):
    """Images that show less of a hidden cause than each of their captions says."""
    rng = np.random.default_rng(seed)
    cause, pairing = rng.normal(size=(n, hidden)), np.repeat(np.arange(n), captions)
    x = cause @ rng.normal(size=(hidden, 20)) + 3 * rng.normal(size=(n, 20))
    y = cause[pairing] @ rng.normal(size=(hidden, 16)) + 0.7 * rng.normal(size=(n * captions, 16))
    return x, y, pairing


N_PAIRED, N_ALONE, N_FRESH = 700, 400, 300


@pytest.fixture(scope="module")
def mixed():
    """A library of images with two captions and of images without; the third captions are the queries.

    ``fresh`` has further pairs.
    """
    n = N_PAIRED + N_ALONE
    x, y, pairing = draw(n + N_FRESH)
    stored = (pairing < N_PAIRED) & (np.arange(len(y)) % 3 < 2)
    retriever = Retriever.from_features(
        x[:N_PAIRED],
        y[stored],
        pairing[stored],
        splits=["train"] * 400 + ["val"] * 300,
        model=AWCCA(params=(2.0, 3.0)),
    )
    retriever.add(x[N_PAIRED:n], ids=list(map(str, range(N_PAIRED, n))))
    vectors = read_vectors(retriever, "search")
    items = np.array([vectors[str(i)] for i in range(n)])
    return SimpleNamespace(
        retriever=retriever,
        x=x[:n],
        queries=y[2 : 3 * n : 3],
        items=items[:, :-1],
        paired=items[:, -1] < 0,
        offset=retriever.fitted.offsets["search"].compute(N_PAIRED, N_ALONE),
        fresh=(x[n:], y[3 * n :], pairing[3 * n :] - n),
    )


def recalls(scores, paired):
    """The share of queries whose item is first, of items with captions and of those without."""
    right = scores.argmax(axis=1) == np.arange(len(scores))
    return right[paired].mean(), right[~paired].mean()


def test_items_with_captions_and_without_are_found_better(mixed):
    queries = mixed.retriever.embed_texts(mixed.queries)
    assert mixed.paired.tolist() == [True] * N_PAIRED + [False] * N_ALONE
    assert mixed.offset > 0
    scores = queries @ mixed.items.T - mixed.offset * mixed.paired
    found = mixed.retriever.search(mixed.queries[::50], k=len(mixed.x))
    for row, hits in zip(scores[::50], found, strict=True):
        ids = [int(hit.id) for hit in hits]
        assert sorted(ids) == list(range(len(row)))
        assert_close([hit.score for hit in hits], row[ids], 40, dtype=np.float32)
    by_image = recalls(queries @ mixed.retriever.embed_images(mixed.x).T, mixed.paired)
    placed = recalls(queries @ mixed.items.T, mixed.paired)
    paired, alone = recalls(scores, mixed.paired)
    assert placed[1] < by_image[1]  # without an offset they are hidden
    assert paired > by_image[0] + 0.05
    assert alone > by_image[1] + 0.02


def test_an_item_is_most_similar_to_itself_whoever_has_captions(mixed):
    vectors = mixed.retriever.embed_images(mixed.x)
    for row in (3, 250, 699, 700, 1000):
        hits = mixed.retriever.similar(image=mixed.x[row], k=20)
        assert hits[0].id == str(row)
        cosines = vectors[[int(hit.id) for hit in hits]] @ vectors[row]
        assert_close([hit.score for hit in hits], cosines, 40)
        assert np.all(np.diff(cosines) <= PLACED)


@pytest.mark.parametrize("least", [0.02, 0.1, 0.4])
def test_a_least_probability_leaves_out_exactly_the_hits_below_it(mixed, least):
    rises = 0
    for query in mixed.queries[::40]:
        hits = mixed.retriever.search(query, k=100)
        rises += np.any(np.diff([hit.probability for hit in hits]) > 0)
        likely = [hit.id for hit in hits if hit.probability >= least]
        found, more = [], True
        while more:
            page = mixed.retriever.search(query, k=3, offset=len(found), min_probability=least)
            found, more = found + [hit.id for hit in page], page.more
        assert found == likely
    assert rises  # between both kinds


def test_the_chosen_offset_is_better_than_none_and_than_a_large_one(mixed):
    """On pairs that it was not chosen on: a quarter of the images is without captions."""
    projector, offset = mixed.retriever.fitted.projectors["search"], mixed.retriever.fitted.offsets["search"]
    assert offset.compute(offset.n_paired, offset.n_alone) == offset.level > 0
    x, y, owners = mixed.fresh
    paired = np.arange(N_FRESH) % 4 > 0
    stored = (np.arange(len(y)) % 3 < 2) & paired[owners]
    items = projector.items(x, y[stored], owners[stored])
    scores = projector.queries(y[2::3]) @ items.T
    chosen, none, large = (
        np.prod(recalls(scores - level * paired, paired)) for level in (offset.level, 0.0, 4 * offset.level)
    )
    assert chosen > none + 0.02
    assert chosen > large + 0.02


@pytest.mark.parametrize("task", TASKS)
def test_without_second_captions_the_best_wrong_items_of_both_kinds_are_equally_good(mixed, task):
    projector = mixed.retriever.fitted.projectors[task]
    x, y, owners = mixed.fresh
    features = {"image": x, "text": y[::3]}
    numbers = np.arange(N_FRESH)
    offset = choose_offset(projector, features, {"image": numbers, "text": numbers})
    assert offset.recalls is None
    items, asked = (x, y[::3]) if task == "search" else (y[::3], x)
    queries = projector.queries(asked)
    alone, placed = queries @ projector.items(items).T, queries @ projector.items(items, asked).T
    spread = alone[~np.eye(N_FRESH, dtype=bool)].std()
    for scores in (alone, placed):
        np.fill_diagonal(scores, -np.inf)
    rng, medians = np.random.default_rng(1), []
    for _ in range(50):
        paired = rng.permutation(N_FRESH) >= N_FRESH // 4
        best = placed[:, paired].max(axis=1) - alone[:, ~paired].max(axis=1)
        medians.append(np.median(best))
    assert offset.level == pytest.approx(np.mean(medians) + 0.25 * spread, abs=float(0.05 * spread))
    assert (offset.n_paired, offset.n_alone) == (N_FRESH - N_FRESH // 4, N_FRESH // 4)


def test_there_is_no_offset_for_l2_and_from_few_images(mixed):
    x, y, owners = mixed.fresh

    def choose(model, n):
        some = owners < n
        features, numbers = {"image": x[:n], "text": y[some]}, {"image": np.arange(n), "text": owners[some]}
        return choose_offset(model.projector("search"), features, numbers)

    cosine, l2 = (AWCCA(params=(2.0, 3.0), similarity=kind).fit(x, y, owners) for kind in ("cosine", "l2"))
    assert choose(cosine, 20) is not None
    assert choose(cosine, 19) is None
    assert choose(l2, N_FRESH) is None


def test_a_model_without_pairs_estimates_its_offset_from_stored_captions():
    """Two towers of a space: images show less of a hidden cause than captions say."""
    rng = np.random.default_rng(0)
    n, owners = 600, np.repeat(np.arange(300), 2)
    cause = rng.normal(size=(n, 32))
    x, asked = (unit(cause + noise * rng.normal(size=cause.shape)) for noise in (1.7, 0.8))
    captions = unit(cause[owners] + 0.8 * rng.normal(size=(600, 32)))
    retriever = Retriever.from_model(Fusion.zero_shot(32))
    retriever.add(x[:300], captions, pairing=owners, ids=list(map(str, range(300))))
    retriever.add(x[300:], ids=list(map(str, range(300, n))))
    items = np.array(
        [place(row, captions[owners == at] if at < 300 else ()) for at, row in enumerate(x)], np.float32
    )
    paired = np.arange(n) < 300
    scores, offsets = np.full((n, n), np.nan), []
    for at, hits in enumerate(retriever.search(asked, k=n)):
        ids = [int(hit.id) for hit in hits]
        scores[at, ids] = [hit.score for hit in hits]
        offsets.append(asked[at] @ items.T - scores[at])
    assert_close(np.array(offsets)[:, ~paired], 0.0, 32, dtype=np.float32, magnitude=1.0)
    offset = offsets[0][0]
    assert offset > 0
    assert_close(np.array(offsets)[:, paired], offset, 32, dtype=np.float32, magnitude=1.0)
    by_image = recalls(asked @ x.T, paired)
    placed = recalls(asked @ items.T, paired)
    found = recalls(scores, paired)
    assert found[0] > by_image[0] + 0.05
    assert found[1] > placed[1] + 0.02


@pytest.mark.data
def test_flickr8k_is_found_better_with_captions_and_without(real_data):
    folder = real_data / "flickr8k"
    pairs = read_pairs(folder / "dataset_flickr8k.json")
    x = np.asarray(open_features(folder / "dinov2s.npy", rows=pairs.n_images)[:4000], np.float32)
    rows = np.array([pairs.caption_rows([image])[:5] for image in range(4000)])
    y = np.asarray(open_features(folder / "minilm.npy", rows=pairs.n_captions), np.float32)[rows]
    retriever = Retriever.from_features(
        x[:2000],
        y[:2000, :4].reshape(-1, y.shape[2]),
        np.repeat(np.arange(2000), 4),
    )
    retriever.add(x[2000:], ids=list(map(str, range(2000, 4000))))
    asked, paired = y[:, 4], np.arange(4000) < 2000
    hits = retriever.search(asked, k=1)
    right = np.array([own[0].id == str(row) for row, own in enumerate(hits)])
    by_image = recalls(retriever.embed_texts(asked) @ retriever.embed_images(x).T, paired)
    assert right[paired].mean() > by_image[0] + 0.02
    assert right[~paired].mean() > by_image[1] + 0.04
