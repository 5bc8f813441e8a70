"""Queries that wait at the same time are searched in one pass, and each request gets its own hits."""

import asyncio

import numpy as np
import pytest

from diptych import InputError
from diptych.service._batching import Batcher
from diptych.service._limits import Limits, Problem
from diptych.service._model import LoadedModel


@pytest.fixture
def search_together(retriever):
    """Send requests at once, ``(queries, options)``; return the answer to each and the size of each batch."""

    def search(*requests, **limits):
        sizes = []

        async def run():
            batcher = Batcher(Limits(**limits), threads=1, on_batch=sizes.append)
            model = LoadedModel(retriever, "model", "1")
            searches = [batcher.search(model, "search", queries, **options) for queries, options in requests]
            answers = await asyncio.gather(*searches, return_exceptions=True)
            assert batcher.slots.used == 0
            batcher.close()
            return answers

        return asyncio.run(run()), sizes

    return search


@pytest.fixture
def texts(retriever):
    return [item.text for item in retriever.store.items("text")][:40]


def test_batched_queries_get_the_same_hits_as_alone(search_together, retriever, texts):
    """Those with other options are not in one batch."""
    filters = (None, {"split": "train"}, 'split = "test"')
    options = [{"k": 1 + i % 2, "offset": i % 2, "where": filters[i % 3]} for i in range(40)]
    requests = [([text], chosen) for text, chosen in zip(texts, options, strict=True)]
    answers, sizes = search_together(*requests, batch=16, concurrency=2)
    for text, chosen, (hits,) in zip(texts, options, answers, strict=True):
        alone = retriever.search(text, **chosen)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert np.allclose([hit.score for hit in hits], [hit.score for hit in alone], atol=1e-5)
        assert (len(hits), hits.more) == (chosen["k"], alone.more)
    assert sum(sizes) == 40
    assert len(sizes) < 15
    together, sizes = search_together(*(([text], {"k": 1}) for text in texts), batch=16, concurrency=2)
    assert sum(sizes) == 40
    assert len(sizes) < 6
    assert max(sizes) <= 16


def test_a_refused_text_does_not_fail_the_others(search_together, texts):
    queries = [[texts[0]], ["zzyzx"], texts[:2], ["qwrtp zzyzx"]]
    (first, bad, pair, bad_pair), _ = search_together(*((texts, {"k": 2}) for texts in queries))
    assert (len(first), len(pair)) == (1, 2)
    assert isinstance(bad, InputError)
    assert isinstance(bad_pair, InputError)


def test_features_and_texts_share_one_batch(search_together, retriever, texts):
    row = retriever.encoders.encode_texts(texts[:1])
    queries = (texts[:1], row, [texts[0]] * 2)
    answers, sizes = search_together(*((query, {"k": 3}) for query in queries))
    found = [[hit.id for hit in hits] for part in answers for hits in part]
    assert found == [found[0]] * 4
    assert sizes == [1, 3] or sizes == [4]


def test_each_request_gets_its_own_ignored_words(search_together, retriever):
    row = retriever.encoders.encode_texts(["a star"])
    queries = (["a star"], ["a quokka", "a boat"], row, ["a wombat"])
    answers, _ = search_together(*((query, {"k": 3}) for query in queries))
    words = [[hits.ignored_words for hits in part] for part in answers]
    assert words == [[()], [("quokka",), ()], [()], [("wombat",)]]


def test_too_many_waiting_requests_get_503(search_together, texts):
    answers, _ = search_together(*[(texts[:1], {"k": 1})] * 9, concurrency=1, waiting=3)
    assert sum(isinstance(answer, Problem) and answer.status_code == 503 for answer in answers) == 5
    assert sum(isinstance(answer, list) for answer in answers) == 4
