"""Captions in languages without spaces between words, from end to end."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from diptych import AWCCA, HKSE, InputError, Retriever
from tolerance import assert_same_hits, rounding

CHINESE = {
    "colours": ["红色", "蓝色", "绿色", "黄色", "黑色", "白色", "紫色", "灰色"],
    "things": ["小狗", "汽车", "自行车", "小船", "房子", "大树", "星星", "气球"],
    "places": ["在雪地里", "在海边", "在山上", "在街道上"],
    "patterns": [
        "{place}有一个{colour}的{thing}。",
        "这张照片里，一个{colour}的{thing}{place}",
        "{place}，{colour}{thing}",
    ],
}
JAPANESE = {
    "colours": ["赤い", "青い", "緑色の", "黄色い", "黒い", "白い", "紫色の", "灰色の"],
    "things": ["犬", "くるま", "自転車", "ボート", "家", "木", "ほし", "バルーン"],
    "places": ["雪の中", "海辺", "山の上", "道路"],
    "patterns": [
        "{place}に{colour}{thing}がある。",
        "この写真では{colour}{thing}が{place}にある",
        "{place}、{colour}{thing}",
    ],
}


def whole_runs(sentence):
    """Words as spaces and punctuation separate them: in these languages, whole clauses."""
    return re.findall(r"\w+", sentence)


def fit_half(language, tokenizer=None):
    """Fit half of the combinations of words."""
    rng = np.random.default_rng(0)
    kinds = [language[name] for name in ("colours", "things", "places")]
    combinations = list(itertools.product(*(range(len(kind)) for kind in kinds)))
    rng.shuffle(combinations)
    x = np.hstack([np.eye(len(kind))[[c[i] for c in combinations]] for i, kind in enumerate(kinds)])
    x += 0.1 * rng.normal(size=x.shape)
    captions = [
        pattern.format(colour=kinds[0][c], thing=kinds[1][t], place=kinds[2][p])
        for c, t, p in combinations
        for pattern in language["patterns"]
    ]
    n, own = len(x), len(language["patterns"])
    splits = ["train"] * (n // 2) + ["val"] * (n // 4) + ["test"] * (n // 4)
    text = HKSE(word_features=100, sentence_features=100, **({"tokenizer": tokenizer} if tokenizer else {}))
    text.fit(captions[: own * (n // 2)])
    return Retriever.from_features(
        x,
        text.transform(captions, unknown="mean"),
        np.repeat(np.arange(n), own),
        splits=splits,
        captions=captions,
        text_encoder=text,
        model=AWCCA(grid=5),
    )


def recall_of_unseen(retriever):
    """Return the recall at 1 on combinations of words that were not trained on."""
    return retriever.info()["facts"]["metrics"]["test"]["search"]["r@1"]


@pytest.fixture(scope="module")
def chinese():
    return fit_half(CHINESE)


def test_whole_clauses_teach_nothing_about_unseen_ones():
    assert recall_of_unseen(fit_half(CHINESE, whole_runs)) < 20


@pytest.mark.parametrize("language", [CHINESE, JAPANESE], ids=["Chinese", "Japanese"])
def test_captions_without_spaces_are_learned_from(language, chinese, tmp_path):
    retriever = chinese if language is CHINESE else fit_half(language)
    assert recall_of_unseen(retriever) > 90
    # The tokenizer comes back with the model.
    retriever.save(tmp_path / "model")
    again = Retriever.load(tmp_path / "model")
    query = language["patterns"][0].format(
        colour=language["colours"][0], thing=language["things"][1], place=language["places"][2]
    )
    hits, expected = again.search(query, 5), retriever.search(query, 5)
    assert_same_hits(hits, expected, rounding(np.float32, 4000))


def test_what_of_a_chinese_query_is_unknown_is_said_in_one_piece(chinese):
    assert chinese.search("红色的小狗").ignored_words == ()
    assert chinese.search("红色的长颈鹿").ignored_words == ("长颈鹿",)
    with pytest.raises(InputError, match="knows: '长颈鹿';"):
        chinese.search("长颈鹿")
