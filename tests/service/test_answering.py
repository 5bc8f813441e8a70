"""Questions that wait together are asked together, and each gets its own answer."""

import asyncio

import numpy as np
import pytest

from diptych import InputError
from diptych.service._batching import Desk
from diptych.service._model import Served
from diptych.service._schemas import Limits, Problem


@pytest.fixture
def model(retriever):
    return Served(retriever, "model", "1")


def sentences(retriever, n):
    return [item.text for item in retriever.store.items() if item.view == "text"][:n]


def test_together_as_alone(model, retriever):
    asked = sentences(retriever, 40)
    sizes = []

    async def all_at_once():
        desk = Desk(Limits(batch=16, concurrency=2), threads=1)
        desk.passes = sizes.append
        questions = [desk.ask(model, "search", [text], 1 + i % 5, None) for i, text in enumerate(asked)]
        found = await asyncio.gather(*questions)
        desk.close()
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
        desk = Desk(Limits(), threads=1)
        asked = [[good[0]], ["zzyzx"], good, ["qwrtp zzyzx"]]
        found = await asyncio.gather(
            *(desk.ask(model, "search", queries, 2, None) for queries in asked), return_exceptions=True
        )
        desk.close()
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
        desk = Desk(Limits(), threads=1)
        found = await asyncio.gather(
            *(desk.ask(model, "search", queries, 3, None) for queries in ([text], row, [text, text]))
        )
        desk.close()
        return [[hit.id for hit in hits] for part in found for hits in part]

    found = asyncio.run(ask())
    assert found == [found[0]] * 4


def test_each_question_is_told_of_its_own_words(model, retriever):
    row = retriever.encoders.encode_texts(["a star"])

    async def ask():
        desk = Desk(Limits(), threads=1)
        asked = (["a star"], ["a quokka", "a boat"], row, ["a wombat"])
        found = await asyncio.gather(*(desk.ask(model, "search", queries, 3, None) for queries in asked))
        desk.close()
        return [[hits.ignored_words for hits in part] for part in found]

    assert asyncio.run(ask()) == [[()], [("quokka",), ()], [()], [("wombat",)]]


def test_a_full_desk_says_so(model, retriever):
    text = sentences(retriever, 1)

    async def ask():
        desk = Desk(Limits(concurrency=1, waiting=3), threads=1)
        found = await asyncio.gather(
            *(desk.ask(model, "search", text, 1, None) for _ in range(9)), return_exceptions=True
        )
        assert desk.inside == 0
        desk.close()
        return found

    found = asyncio.run(ask())
    assert sum(isinstance(answer, Problem) and answer.status_code == 503 for answer in found) == 5
    assert sum(isinstance(answer, list) for answer in found) == 4
