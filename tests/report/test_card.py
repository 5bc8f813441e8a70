import ast
import dataclasses
import re
import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.report import Card, EncoderFacts, FusedTaskFacts, IndexFacts, TaskFacts, model_card
from diptych.report._card import describe_correction, describe_quality, escape_markdown
from diptych.report._page import one_line

markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
MARKDOWN = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- hidden",
    "a | b | c",
    "a \\| b",
    "two\n\n# lines\n\n| x |\n|---|\n",
    "```\nout of the fence",
    "`code` ``more`` ~~gone~~",
    "[click](javascript:alert(1)) ![x](http://example.org/x.png)",
    "[ref]: http://example.org",
    "&lt;b&gt; &#60;b&#62; &amp;",
    "*bold* __bold__ \\*",
    "ends in hashes ##",
    "ends in a backslash \\",
    "turned \u202e around \u2028 and \x00 cut",
    "<https://example.org>",
]
NUMBERS = {"r@1": 21.64, "r@5": 49.5, "r@10": 62.96, "median_rank": 6.0, "mean_rank": 31.27}
BEST = {"r@1": 30.7, "r@5": 57.2, "r@10": 70.6, "median_rank": 4.0, "mean_rank": 18.04}


def make_card(**changes):
    card = Card(
        name="beaches",
        folder="beaches",
        library="1.2.3",
        date="2025-01-31",
        pairs={"train": (6000, 30000), "test": (1000, 5000)},
        image_encoder=EncoderFacts("ResNet-50", "onnx:1f2e", 2048),
        text_encoder=EncoderFacts("HKSE(rbf, rbf)", "hkse:77", 2000),
        tasks={
            "search": TaskFacts(
                "γ = 12.3", "γ = 0.45", 1999, (0.98, 0.97, 0.95, 0.93, 0.91, 0.9), (0.99,) * 6, (0.7, 0.6)
            ),
            "annotate": TaskFacts("k = 12", "k = 40", 3, np.array([0.5, 0.25, 0.125]), (0.8, 0.7, 0.6)),
        },
        params={"filter": "tikhonov", "normalize": ("unit", "none"), "metric": "r@1"},
        selected_on="the validation pairs",
        seconds=12.34,
        metrics={"test": {"search": NUMBERS, "annotate": BEST}},
        index=IndexFacts({"images": 8000, "texts": 40000}, "HNSW", "float16", 0.987),
        files={"config.json": "parameters"},
        has_figure=True,
    )
    return dataclasses.replace(card, **changes)


def tables(text):
    """Every table as rows of the text that a reader sees."""
    parsed, cell = [], False
    for token in MARKDOWN.parse(text):
        if token.type == "table_open":
            parsed.append([])
        elif token.type == "tr_open":
            parsed[-1].append([])
        elif token.type in ("td_open", "th_open"):
            cell = True
        elif token.type == "inline" and cell:
            parsed[-1][-1].append(seen(token))
            cell = False
    return parsed


def seen(inline):
    return "".join(child.content for child in inline.children)


def kinds(text):
    """The shape of a document: every token's kind, and the targets of links and pictures."""
    shape = []
    for token in MARKDOWN.parse(text):
        shape.append(token.type)
        shape += [(c.type, c.attrGet("src")) for c in token.children or () if not c.type.startswith("text")]
    return shape


def test_the_tables_hold_the_numbers():
    pairs, views, recalls, selected, correlations, params, files = tables(model_card(make_card()))
    assert pairs[1:] == [["train", "6,000", "30,000"], ["test", "1,000", "5,000"]]
    assert views[1:] == [
        ["images", "ResNet-50", "onnx:1f2e", "2,048"],
        ["texts", "HKSE(rbf, rbf)", "hkse:77", "2,000"],
    ]
    assert recalls == [
        ["pairs", "task", "r@1", "r@5", "r@10", "median rank", "mean rank"],
        ["test", "search: text → images", "21.6", "49.5", "63.0", "6", "31.3"],
        ["test", "annotate: image → texts", "30.7", "57.2", "70.6", "4", "18.0"],
    ]
    assert selected[1][1:] == ["γ = 12.3", "γ = 0.45", "1,999"]
    assert selected[2][1:] == ["k = 12", "k = 40", "3"]
    # Those of the regularised model are never shown without those of its variates.
    assert [row[1:] for row in correlations[1:]] == [
        ["0.980, 0.970, 0.950, 0.930, 0.910, …", "0.500, 0.250, 0.125"],
        ["0.990, 0.990, 0.990, 0.990, 0.990, …", "0.800, 0.700, 0.600"],
        ["0.700, 0.600, …", "not measured"],
    ]
    assert params[1:] == [["filter", "tikhonov"], ["normalize", "unit, none"], ["metric", "r@1"]]
    assert [row[0] for row in files[1:]] == ["README.md", "config.json", "regularization.png"]


def make_fused_card(text="resnet × hkse"):
    part = {"name": text, "weight": 2 / 3, "use": text, "components": 1512}
    tasks = {
        "search": FusedTaskFacts([part, part], describe_correction({"kind": "none"})),
        "annotate": FusedTaskFacts([part], text),
    }
    return model_card(make_card(tasks=tasks, params={"preset": "best"}, has_figure=False))


def test_the_parts_of_a_fusion_are_listed():
    *_, parts, corrections, params, _ = tables(make_fused_card())
    cells = ["resnet × hkse", "0.67", "resnet × hkse", "1,512"]
    search, annotate = "search: text → images", "annotate: image → texts"
    assert parts == [
        ["task", "part", "weight", "compared by", "components"],
        [search, *cells],
        [search, *cells],
        [annotate, *cells],
    ]
    assert corrections[1:] == [[search, "none"], [annotate, "resnet × hkse"]]
    assert params[1:] == [["preset", "best"]]
    assert "sum of the parts' cosines" in make_fused_card()
    assert "Regularisation" not in make_fused_card()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_parts_stay_text(text):
    assert kinds(make_fused_card(text)) == kinds(make_fused_card())


def test_it_says_what_is_not_known():
    card = model_card(
        make_card(
            metrics=None,
            index=None,
            has_figure=False,
            selected_on=None,
            quality=describe_quality({}),
            text_encoder=None,
            seconds=None,
            params={},
        )
    )
    assert "Not measured" in card
    assert "Nothing is indexed" in card
    assert "set by the user, not selected" in card
    assert "features were passed" in card
    assert "regularization.png" not in card
    assert "None" not in card


def test_a_missing_or_failed_number_is_a_dash():
    card = model_card(make_card(metrics={"test": {"annotate": {"r@1": float("nan"), "r@5": 7.0}}}))
    assert tables(card)[2][1:] == [["test", "annotate: image → texts", "–", "7.0", "–", "–", "–"]]


def test_numbers_that_chose_are_called_optimistic():
    chosen = {"pairs": "the val split", "metric": "r@1", "search": 30.0, "annotate": 40.0}
    test = {"test": {"search": NUMBERS, "annotate": NUMBERS}}
    both = describe_quality({"selection": chosen, "metrics": test})
    assert "r@1 there: search 30.0, annotate 40.0." in both
    assert "slightly optimistic" in both
    assert "test split, which fitting did not use: r@1 search 21.6" in both
    assert "Not measured on pairs" in describe_quality({"selection": chosen})
    assert "optimistic" not in describe_quality({"metrics": test})
    assert "from theory (oas), not selected" in describe_quality({"theory": "oas"})
    refitted = {"selection": chosen, "metrics": test, "refitted": {"pairs": 1200, "before": 1000}}
    assert "on 1,200 pairs, and not measured again" in describe_quality(refitted)
    assert "21.6" not in describe_quality(refitted)
    assert "search 30.0" in model_card(make_card(quality=both))


def test_few_pairs_are_called_few():
    assert "**" not in model_card(make_card(pairs={"train": (10, 50)}))
    assert "**This model was fitted on 49 pairs" in model_card(make_card(pairs={"train": (10, 49)}))


def test_scores_are_explained_as_they_are():
    assert "cosine" in model_card(make_card())
    by_distance = model_card(make_card(params={"similarity": "l2"}))
    assert "distance" in by_distance
    assert "cosine" not in by_distance


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_wherever_it_enters(text):
    encoder = EncoderFacts(text, text, 7)
    card = make_card(
        name=text,
        folder=text,
        library=text,
        date=text,
        pairs={text: (1, 2), "test": (3, 4)},
        image_encoder=encoder,
        text_encoder=encoder,
        tasks={task: TaskFacts(text, text, 9, (0.5,)) for task in ("search", "annotate")},
        params={text: text, "normalize": (text, text), "metric": text},
        selected_on=text,
        metrics={text: {"search": NUMBERS, "annotate": BEST}},
        index=IndexFacts({text: 1, "b": 2}, text, text, 0.5),
        files={text: text},
    )
    assert kinds(model_card(card)) == kinds(model_card(make_card()))
    heading = MARKDOWN.parse(model_card(card))[1]
    assert seen(heading) == one_line(text)
    assert tables(model_card(card))[1][1] == ["images", one_line(text), one_line(text), "7"]


@given(st.text(alphabet=st.sampled_from("ab1 \n\t\\`*_~[]()<>|#$&!-+.:=\"'/;@\u202e"), max_size=40))
def test_escaped_text_is_read_as_it_was_written(text):
    assert not set("<>\n") & set(escape_markdown(text))
    heading = MARKDOWN.parse(f"# x{escape_markdown(text)}x")
    assert [token.type for token in heading] == ["heading_open", "inline", "heading_close"]
    assert {child.type for child in heading[1].children} <= {"text", "text_special"}
    assert seen(heading[1]) == f"x{one_line(text)}x"


def test_a_long_name_is_cut():
    assert len(model_card(make_card(name="x" * 10_000_000))) < 10_000


@pytest.mark.parametrize(
    "folder", ["beaches", "my beaches", "it's; rm -rf ~", 'a"b', "c$(d)`e`", "back\\slash", "-rf", "été 🏖"]
)
def test_the_commands_name_the_folder_and_nothing_else(folder):
    python, shell = (
        t.content for t in MARKDOWN.parse(model_card(make_card(folder=folder))) if t.tag == "code"
    )
    call = ast.parse(python).body[1].value
    assert ast.literal_eval(call.args[0]) == folder
    search, annotate = (shlex.split(line) for line in shell.splitlines())
    place = "./-rf" if folder == "-rf" else folder
    assert search == ["diptych", "search", place, "a dog"]
    assert annotate == ["diptych", "annotate", place, "photo.jpg"]


def test_the_commands_ask_with_features_where_no_encoder_is_kept():
    (python,), (shell,) = (
        re.findall(rf"```{language}\n(.*?)```", model_card(make_card(image_encoder=None)), re.DOTALL)
        for language in ("python", "sh")
    )
    assert 'model.search("a dog")' in python
    assert "--features images.npy" in shell
    assert "photo.jpg" not in shell
    one_of_my_own = EncoderFacts("mine", "mine:1", 7, kept=False)
    card = model_card(make_card(image_encoder=one_of_my_own, text_encoder=one_of_my_own))
    assert "--features texts.npy" in card
    assert 'search("a dog")' not in card
    assert "photo.jpg" not in card


def test_a_folder_that_no_line_can_hold_is_not_named():
    card = model_card(make_card(folder="a\n```\nrm -rf ~"))
    assert "rm -rf" not in card
    assert re.search(r'^diptych search FOLDER "a dog"$', card, flags=re.MULTILINE)
