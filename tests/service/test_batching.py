"""Queries that wait at the same time are searched in one pass, and each request gets its own hits."""

import asyncio

import numpy as np
import pytest

from diptych import InputError
from diptych.service._batching import Batcher
from diptych.service._limits import Limits, Problem
from diptych.service._model import LoadedModel


@pytest.fixture
def model(retriever):
    return LoadedModel(retriever, "model", "1")


def stored_texts(retriever, n):
    return [item.text for item in retriever.store.items() if item.view == "text"][:n]


def test_batched_queries_get_the_same_hits_as_alone(model, retriever):
    texts = stored_texts(retriever, 40)
    sizes = []

    async def search_all():
        batcher = Batcher(Limits(batch=16, concurrency=2), threads=1, on_batch=sizes.append)
        searches = [batcher.search(model, "search", [text], 1 + i % 2) for i, text in enumerate(texts)]
        answers = await asyncio.gather(*searches)
        batcher.close()
        return answers

    answers = asyncio.run(search_all())
    for i, (text, (hits,)) in enumerate(zip(texts, answers, strict=True)):
        alone = retriever.search(text, k=1 + i % 2)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert np.allclose([hit.score for hit in hits], [hit.score for hit in alone], atol=1e-5)
    assert sum(sizes) == 40
    assert len(sizes) < 10
    assert max(sizes) <= 16


def test_a_refused_text_does_not_fail_the_others(model, retriever):
    good = stored_texts(retriever, 2)

    async def search_all():
        batcher = Batcher(Limits(), threads=1)
        requests = [[good[0]], ["zzyzx"], good, ["qwrtp zzyzx"]]
        answers = await asyncio.gather(
            *(batcher.search(model, "search", queries, 2) for queries in requests),
            return_exceptions=True,
        )
        batcher.close()
        return answers

    first, bad, pair, bad_pair = asyncio.run(search_all())
    assert len(first) == 1
    assert len(pair) == 2
    assert isinstance(bad, InputError)
    assert isinstance(bad_pair, InputError)


def test_features_and_texts_share_one_batch(model, retriever):
    text = stored_texts(retriever, 1)[0]
    row = retriever.encoders.encode_texts([text])

    async def search_all():
        batcher = Batcher(Limits(), threads=1)
        answers = await asyncio.gather(
            *(batcher.search(model, "search", queries, 3) for queries in ([text], row, [text, text]))
        )
        batcher.close()
        return [[hit.id for hit in hits] for part in answers for hits in part]

    answers = asyncio.run(search_all())
    assert answers == [answers[0]] * 4


def test_each_request_gets_its_own_ignored_words(model, retriever):
    row = retriever.encoders.encode_texts(["a star"])

    async def search_all():
        batcher = Batcher(Limits(), threads=1)
        requests = (["a star"], ["a quokka", "a boat"], row, ["a wombat"])
        answers = await asyncio.gather(*(batcher.search(model, "search", queries, 3) for queries in requests))
        batcher.close()
        return [[hits.ignored_words for hits in part] for part in answers]

    assert asyncio.run(search_all()) == [[()], [("quokka",), ()], [()], [("wombat",)]]


def test_too_many_waiting_requests_get_503(model, retriever):
    text = stored_texts(retriever, 1)

    async def search_all():
        batcher = Batcher(Limits(concurrency=1, waiting=3), threads=1)
        answers = await asyncio.gather(
            *(batcher.search(model, "search", text, 1) for _ in range(9)), return_exceptions=True
        )
        assert batcher.slots.used == 0
        batcher.close()
        return answers

    answers = asyncio.run(search_all())
    assert sum(isinstance(answer, Problem) and answer.status_code == 503 for answer in answers) == 5
    assert sum(isinstance(answer, list) for answer in answers) == 4
