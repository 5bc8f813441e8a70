"""Questions that wait together are asked together, and each gets its own answer."""

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


def sentences(retriever, n):
    return [item.text for item in retriever.store.items() if item.view == "text"][:n]


def test_together_as_alone(model, retriever):
    asked = sentences(retriever, 40)
    sizes = []

    async def all_at_once():
        batcher = Batcher(Limits(batch=16, concurrency=2), threads=1, on_batch=sizes.append)
        questions = [batcher.search(model, "search", [text], 1 + i % 5, None) for i, text in enumerate(asked)]
        found = await asyncio.gather(*questions)
        batcher.close()
        return found

    found = asyncio.run(all_at_once())
    for i, (text, (hits,)) in enumerate(zip(asked, found, strict=True)):
        alone = retriever.search(text, k=1 + i % 5)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert np.allclose([hit.score for hit in hits], [hit.score for hit in alone], atol=1e-5)
    assert sum(sizes) == 40
    assert len(sizes) < 10
    assert max(sizes) <= 16


def test_one_bad_question_spoils_no_other(model, retriever):
    good = sentences(retriever, 2)

    async def ask():
        batcher = Batcher(Limits(), threads=1)
        asked = [[good[0]], ["zzyzx"], good, ["qwrtp zzyzx"]]
        found = await asyncio.gather(
            *(batcher.search(model, "search", queries, 2, None) for queries in asked), return_exceptions=True
        )
        batcher.close()
        return found

    first, bad, both, worse = asyncio.run(ask())
    assert len(first) == 1
    assert len(both) == 2
    assert isinstance(bad, InputError)
    assert isinstance(worse, InputError)


def test_features_and_sentences_in_one_pass(model, retriever):
    text = sentences(retriever, 1)[0]
    row = retriever.encoders.encode_texts([text])

    async def ask():
        batcher = Batcher(Limits(), threads=1)
        found = await asyncio.gather(
            *(batcher.search(model, "search", queries, 3, None) for queries in ([text], row, [text, text]))
        )
        batcher.close()
        return [[hit.id for hit in hits] for part in found for hits in part]

    found = asyncio.run(ask())
    assert found == [found[0]] * 4


def test_each_question_is_told_of_its_own_words(model, retriever):
    row = retriever.encoders.encode_texts(["a star"])

    async def ask():
        batcher = Batcher(Limits(), threads=1)
        asked = (["a star"], ["a quokka", "a boat"], row, ["a wombat"])
        found = await asyncio.gather(
            *(batcher.search(model, "search", queries, 3, None) for queries in asked)
        )
        batcher.close()
        return [[hits.ignored_words for hits in part] for part in found]

    assert asyncio.run(ask()) == [[()], [("quokka",), ()], [()], [("wombat",)]]


def test_a_full_batcher_says_so(model, retriever):
    text = sentences(retriever, 1)

    async def ask():
        batcher = Batcher(Limits(concurrency=1, waiting=3), threads=1)
        found = await asyncio.gather(
            *(batcher.search(model, "search", text, 1, None) for _ in range(9)), return_exceptions=True
        )
        assert batcher.pending == 0
        batcher.close()
        return found

    found = asyncio.run(ask())
    assert sum(isinstance(answer, Problem) and answer.status_code == 503 for answer in found) == 5
    assert sum(isinstance(answer, list) for answer in found) == 4
