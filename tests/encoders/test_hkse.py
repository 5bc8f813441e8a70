"""HKSE as an estimator: its features, unknown words, scikit-learn and torch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from diptych import InputError
from diptych._arrays import to_numpy
from diptych.encoders import HKSE, WordVectors, sentence_kernel, tokenize
from hkse_models import KINDS, assert_alike, small

every_kind = pytest.mark.parametrize(("word", "sentence"), KINDS)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def naive(hkse, words, vectors):
    """Compute the paper's formula for one text, token by token, in float64."""
    tokens = [vectors[w].astype(np.float64) for w in words if w in vectors]
    if hkse.word == "rbf":
        w, b = (draw.astype(np.float64) for draw in hkse.encoder_.word_map)
        tokens = [np.sqrt(2 / len(b)) * np.cos(a @ w + b) for a in tokens]
    mean = sum(tokens) / len(tokens)
    if hkse.sentence == "lin":
        return mean
    w, b = (draw.astype(np.float64) for draw in hkse.encoder_.sentence_map)
    return np.sqrt(2 / len(b)) * np.cos(mean @ w + b)


@every_kind
def test_features_follow_the_formula_of_the_paper(table, captions, training, word, sentence):
    model = small(table, word, sentence).fit(training)
    assert "snow" not in model.vocabulary_
    features = model.transform(captions)  # with words of the table that no training text has
    assert features.dtype == np.float32
    assert_alike(features, [naive(model, tokenize(caption), table) for caption in captions])


@every_kind
def test_inner_products_approximate_the_exact_kernel(table, captions, word, sentence):
    model = HKSE(table, word, sentence, word_features=4000, sentence_features=4000, gamma=0.2, eta=0.5)
    features = model.fit_transform(captions[:30])
    words = [np.array([table[word] for word in caption.split()]) for caption in captions[:30]]
    exact = sentence_kernel(words, word=word, sentence=sentence, gamma=0.2, eta=0.5)
    tolerance = 1e-4 if (word, sentence) == ("lin", "lin") else 0.1
    np.testing.assert_allclose(features @ features.T, exact, atol=tolerance)


def test_gamma_is_set_from_the_median_distance_of_the_vocabulary(table):
    model = small(table).fit(["dog cat tree"])
    vectors = np.array([table[word] for word in ("dog", "cat", "tree")])
    distances = [np.linalg.norm(vectors[i] - vectors[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert model.gamma_ == pytest.approx(1 / np.median(distances) ** 2, rel=1e-5)
    assert model.vocabulary_ == ["dog", "cat", "tree"]
    assert small(table, gamma=0.7).fit(["dog"]).gamma_ == 0.7
    assert small(table, word="lin").fit(["dog"]).gamma_ is None


@given(st.lists(st.integers(0, 199), min_size=1, max_size=40), st.integers(1, 17))
def test_transform_blocks_agrees_with_transform(hkse, captions, order, block_rows):
    chosen = [captions[i] for i in order]
    parts = list(hkse.transform_blocks(iter(chosen), block_rows))
    assert [len(part) for part in parts[:-1]] == [block_rows] * (len(parts) - 1)
    assert_alike(np.concatenate(parts), hkse.transform(chosen))


def test_transform_blocks_reads_one_block_at_a_time(hkse, captions):
    captions_read = []
    parts = hkse.transform_blocks((captions_read.append(caption) or caption for caption in captions), 10)
    next(parts)
    assert len(captions_read) == 10


def test_fit_transform_equals_fit_then_transform(table, captions):
    captions = captions * 25  # more than a block
    first = small(table).fit_transform(iter(captions))
    assert_alike(first, small(table).fit(captions).transform(captions))


def test_lists_of_words_and_custom_tokenizers_are_used(hkse, table, captions):
    expected = hkse.transform(["dog runs"])
    assert_alike(hkse.transform([["dog", "runs"]]), expected)
    split = small(table, tokenizer=lambda s: s.split("|")).fit([c.replace(" ", "|") for c in captions])
    assert_alike(split.transform(["dog|runs"]), expected)
    with pytest.raises(InputError, match="'DOG'"):
        hkse.transform([["DOG"]])


def test_unknown_words_are_skipped_and_counted_in_coverage(table):
    model = small(table).fit(["dog unicorn", "cat unicorn griffin", "tree", "unicorn griffin", ""])
    report = model.coverage_
    assert (report.texts, report.texts_without_known_word) == (5, 2)
    assert (report.tokens, report.unknown_tokens) == (8, 5)
    assert (report.words, report.known_words) == (5, 3)
    assert report.most_frequent_unknown == [("unicorn", 3), ("griffin", 2)]
    assert report.unknown_share == pytest.approx(5 / 8)
    assert "62.5 %" in str(report)
    assert "unicorn (3), griffin (2)" in str(report)
    assert_alike(model.transform(["dog unicorn"]), model.transform(["dog"]))
    assert model.coverage(["dragon dog"]).most_frequent_unknown == [("dragon", 1)]


@every_kind
def test_a_training_text_without_known_words_gets_the_training_mean(table, word, sentence):
    training = ["dog runs", "unicorn", "the cat", ""]
    model = small(table, word, sentence)
    features = model.fit_transform(training)
    assert_alike(features[1], features[3])
    assert_alike(features[1], model.transform(["unicorn"], unknown="mean")[0])
    word_level = small(table, word, "lin").fit(training).transform(["dog runs", "the cat"])
    assert_alike(model.encoder_.mean, word_level.mean(axis=0))
    if sentence == "lin":
        assert_alike(features[1], features[[0, 2]].mean(axis=0))
    else:
        # The mean of all training texts equals the text that joins them, if they have one length.
        assert_alike(features[1], model.transform(["dog runs the cat"])[0])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["dog", "unicorn griffin unicorn"], r"texts\[1\] has no word .* knows: 'unicorn', 'griffin'"),
        (["dog", "cat", " ... "], r"texts\[2\] contains no word"),
        ([*["dog"] * 7, "unicorn"], r"texts\[7\].*'unicorn'"),
        ([*["dog"] * 7, None], r"texts\[7\] is a NoneType"),
        ([" ".join(f"x{i}" for i in range(15))], "and 5 more"),
    ],
)  # fmt: skip
def test_a_query_without_known_words_is_refused_with_its_words(hkse, texts, message):
    with pytest.raises(InputError, match=message):
        hkse.transform(texts)
    with pytest.raises(InputError, match=message):
        list(hkse.transform_blocks(texts, 3))


def test_without_vectors_word_vectors_are_learned_and_the_seed_decides(captions):
    features = small(None).fit_transform(captions)
    assert features.shape == (200, 30)
    np.testing.assert_array_equal(features, small(None).fit_transform(captions))
    assert not np.allclose(features, small(None, random_state=2).fit_transform(captions))
    assert np.linalg.matrix_rank(features - features.mean(axis=0)) > 5


def test_hkse_works_in_scikit_learn_pipelines(table, captions):
    model = small(table, "lin", eta=0.3)
    again = clone(model)
    assert (again.get_params()["eta"], again.get_params()["word"]) == (0.3, "lin")
    assert not hasattr(again, "vocabulary_")
    assert again.vectors is table
    assert make_pipeline(model, PCA(3)).fit(captions).transform(captions[:5]).shape == (5, 3)
    assert model.get_feature_names_out()[0] == "hkse0"
    with pytest.raises(NotFittedError):
        again.transform(captions)


@pytest.mark.parametrize("word_features", [7, 40])  # 7: the length of the word vectors
def test_lin_and_rbf_do_not_share_frequencies(table, captions, word_features):
    first, second = (
        small(table, word, word_features=word_features).fit(captions).encoder_.sentence_map.weights[:7]
        for word in ("lin", "rbf")
    )
    assert first.shape == second.shape
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / np.sqrt(first.size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": "poly"}, "word='poly'"),
        ({"sentence": None}, "sentence=None"),
        ({"word_features": 0}, "word_features=0"),
        ({"sentence_features": 1.5}, r"sentence_features=1\.5"),
        ({"gamma": 0}, "gamma=0"),
        ({"gamma": "mean"}, "gamma='mean'"),
        ({"eta": -1}, "eta=-1"),
        ({"eta": "median"}, "eta='median'"),
        ({"tokenizer": "spacy"}, "tokenizer='spacy'"),
        ({"vectors": 3}, "vectors is a int"),
        *(({"random_state": seed}, "random_state") for seed in ("x", -1, 1.5)),
        *(({"query_words": count}, "query_words") for count in (-1, 2.5, None, True)),
    ],
)
def test_wrong_parameters_are_refused(table, captions, options, message):
    with pytest.raises(InputError, match=message):
        HKSE(**{"vectors": table, **options}).fit(captions)


@pytest.mark.parametrize("method", ["fit", "fit_transform", "transform"])
def test_wrong_texts_are_refused(table, captions, method):
    run = getattr(small(table).fit(captions), method)
    for texts, message in (
        ("a dog", "one str"),
        ([], "no texts"),
        (7, "texts is a int"),
        (["a dog", None], r"texts\[1\] is a NoneType"),
        ([["a", 3]], r"texts\[0\] is a list"),
        ([b"a dog"], r"texts\[0\] is a bytes"),
    ):
        with pytest.raises(InputError, match=message):
            run(texts)


def test_wrong_options_are_refused(hkse, table, captions):
    for message, run in (
        ("one str", lambda: hkse.transform_blocks("a dog")),
        ("block_rows=0", lambda: hkse.transform_blocks(captions, 0)),
        ("unknown='skip'", lambda: hkse.transform(captions, unknown="skip")),
        ("None of the 1 words", lambda: small(table).fit(["unicorn"])),
    ):
        with pytest.raises(InputError, match=message):
            run()


@every_kind
def test_torch_agrees_with_numpy(torch, table, captions, word, sentence):
    model = small(table, word, sentence).fit(captions)
    queries = [*captions[:20], "unicorn"]
    features = model.to("cpu").transform(queries, unknown="mean")
    assert isinstance(features, torch.Tensor)
    assert features.dtype == torch.float32
    assert_alike(to_numpy(features), model.transform(queries, unknown="mean"))
    assert isinstance(model.transform(queries[:1]), np.ndarray)  # the original still uses NumPy


def test_a_torch_table_gives_torch_features(torch, table, training):
    model = small(WordVectors(table.words, torch.as_tensor(table.matrix)))
    features, expected = model.fit_transform(training), small(table).fit(training)
    assert isinstance(features, torch.Tensor)
    assert_alike(to_numpy(features), expected.transform(training))
    query = ["dog snow"]  # a word beyond the training vocabulary
    assert_alike(to_numpy(model.transform(query)), expected.transform(query))


def test_cuda_agrees_with_numpy(torch, hkse, table, captions):
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    features = hkse.to("cuda").transform([*captions, "unicorn"], unknown="mean")
    assert features.device.type == "cuda"
    assert_alike(to_numpy(features), hkse.transform([*captions, "unicorn"], unknown="mean"))
    tensors = WordVectors(table.words, torch.as_tensor(table.matrix, device="cuda"))
    assert small(tensors).fit_transform(captions).device.type == "cuda"
