import ast
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.cca._description import CorrectionDescription, ModelDescription, PartDescription
from diptych.report._card import Card, describe_quality, escape_markdown, model_card
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


CORRELATIONS = {
    "search": {
        "correlations": [0.98, 0.97, 0.95, 0.93, 0.91, 0.9],
        "train_correlations": [0.99] * 6,
        "validation_correlations": [0.7, 0.6],
    },
    "annotate": {
        "correlations": [0.5, 0.25, 0.125],
        "train_correlations": [0.8, 0.7, 0.6],
        "validation_correlations": None,
    },
}
IMAGE_ENCODER = {"name": "ResNet-50", "fingerprint": "onnx:1f2e", "dimension": 2048}
TEXT_ENCODER = {"name": "HKSE(rbf, rbf)", "fingerprint": "hkse:77", "dimension": 2000}
NO_ENCODER = {"name": "", "fingerprint": "", "dimension": 2000}


def make_card(name="beaches", *, model=None, facts=None, kept=("image", "text"), files=None, **info):
    """The text of a card; ``info``, ``facts`` and ``model`` replace parts of the description."""
    filters = {"search": ["γ = 12.3", "γ = 0.45"], "annotate": ["k = 12", "k = 40"]}
    description = {
        "filters": filters,
        "components": {"search": 1999, "annotate": 3},
        "correlations": CORRELATIONS,
        "params": {"filter": "tikhonov", "normalize": ["unit", "none"], "metric": "r@1"},
    }
    measured = {
        "date": "2025-01-31",
        "pairs": {"train": (6000, 30000), "test": (1000, 5000)},
        "selection": {"pairs": "the validation pairs"},
        "seconds": {"all": 12.34},
        "metrics": {"test": {"search": NUMBERS, "annotate": BEST}},
        "graph_recall": {"search": 0.987, "annotate": 0.99},
    }
    known = {
        "library": "1.2.3",
        "views": ["image", "text"],
        "encoders": {"image": IMAGE_ENCODER, "text": TEXT_ENCODER},
        "items": {"image": 8000, "text": 40000},
        "index": {"kind": "hnsw", "dtype": "float16"},
        "calibration": {"absent": "there were none"},
        "facts": measured | (facts or {}),
    }
    fitted = ModelDescription("AWCCA", weighting="asymmetric", **description | (model or {}))
    files = {"config.json": "parameters", "regularization.png": "scores"} if files is None else files
    return model_card(Card(name, known | info, fitted, files, kept))


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
    pairs, views, recalls, selected, correlations, params, files = tables(make_card())
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
    part = PartDescription(text, 2 / 3, text, 1512)
    corrections = {
        "search": CorrectionDescription("none", 0.0, 0, False),
        "annotate": CorrectionDescription("csls", 0.3, 10, True),
    }
    parts = {"search": [part, part], "annotate": [part]}
    params = {"preset": "best", "metric": text}
    model = {"parts": parts, "corrections": corrections, "params": params, "correlations": {}}
    return make_card(model=model, files={})


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
    assert corrections[1] == [search, "none"]
    assert corrections[2][1].startswith("an item loses 0.3 of its mean score with the 10 nearest")
    assert corrections[2][1].endswith("(CSLS); less for a query that is unlike those")
    assert params[1:] == [["preset", "best"], ["metric", "resnet × hkse"]]
    assert "sum of the parts' cosines" in make_fused_card()
    assert "Regularisation" not in make_fused_card()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_parts_stay_text(text):
    assert kinds(make_fused_card(text)) == kinds(make_fused_card())


def test_it_says_what_is_not_known():
    card = make_card(
        facts={"metrics": {}, "selection": {}, "seconds": {}, "quality": describe_quality({})},
        items={"image": 0, "text": 0},
        encoders={"image": IMAGE_ENCODER, "text": NO_ENCODER},
        model={"params": {}},
        files={},
    )
    assert "Not measured" in card
    assert "Nothing is indexed" in card
    assert "set by the user, not selected" in card
    assert "features were passed" in card
    assert "regularization.png" not in card
    assert "Hits have none, because there were none." in card
    assert "None" not in card


def test_a_missing_or_failed_number_is_a_dash():
    card = make_card(facts={"metrics": {"test": {"annotate": {"r@1": float("nan"), "r@5": 7.0}}}})
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
    assert "search 30.0" in make_card(facts={"quality": both})


def test_few_pairs_are_called_few():
    assert "**" not in make_card(facts={"pairs": {"train": (10, 50)}})
    assert "**This model was fitted on 49 pairs" in make_card(facts={"pairs": {"train": (10, 49)}})


def test_scores_are_explained_as_they_are():
    assert "cosine" in make_card()
    by_distance = make_card(model={"params": {"similarity": "l2"}})
    assert "distance" in by_distance
    assert "cosine" not in by_distance


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_wherever_it_enters(text):
    encoder = {"name": text, "fingerprint": text, "dimension": 7}
    card = make_card(
        text,
        library=text,
        encoders={"image": encoder, "text": encoder},
        index={"kind": text, "dtype": text},
        calibration={"absent": text},
        model={
            "filters": {task: [text, text] for task in ("search", "annotate")},
            "params": {text: text, "normalize": [text, text], "metric": text},
        },
        facts={
            "date": text,
            "pairs": {text: (1, 2), "test": (3, 4)},
            "selection": {"pairs": text},
            "metrics": {text: {"search": NUMBERS, "annotate": BEST}},
        },
        files={text: text, "regularization.png": text},
    )
    assert kinds(card) == kinds(make_card())
    heading = MARKDOWN.parse(card)[1]
    assert seen(heading) == one_line(text)
    assert tables(card)[1][1] == ["images", one_line(text), one_line(text), "7"]


@given(st.text(alphabet=st.sampled_from("ab1 \n\t\\`*_~[]()<>|#$&!-+.:=\"'/;@\u202e"), max_size=40))
def test_escaped_text_is_read_as_it_was_written(text):
    assert not set("<>\n") & set(escape_markdown(text))
    heading = MARKDOWN.parse(f"# x{escape_markdown(text)}x")
    assert [token.type for token in heading] == ["heading_open", "inline", "heading_close"]
    assert {child.type for child in heading[1].children} <= {"text", "text_special"}
    assert seen(heading[1]) == f"x{one_line(text)}x"


def test_a_long_name_is_cut():
    assert len(make_card(library="x" * 10_000_000)) < 10_000


@pytest.mark.parametrize(
    "folder", ["beaches", "my beaches", "it's; rm -rf ~", 'a"b', "c$(d)`e`", "back\\slash", "-rf", "été 🏖"]
)
def test_the_commands_name_the_folder_and_nothing_else(folder):
    python, shell = (t.content for t in MARKDOWN.parse(make_card(folder)) if t.tag == "code")
    call = ast.parse(python).body[1].value
    assert ast.literal_eval(call.args[0]) == folder
    search, annotate = (shlex.split(line) for line in shell.splitlines())
    place = "./-rf" if folder == "-rf" else folder
    assert search == ["diptych", "search", place, "a dog"]
    assert annotate == ["diptych", "annotate", place, "photo.jpg"]


def test_the_commands_ask_with_features_where_no_encoder_is_kept():
    (python,), (shell,) = (
        re.findall(rf"```{language}\n(.*?)```", make_card(kept=["text"]), re.DOTALL)
        for language in ("python", "sh")
    )
    assert 'model.search("a dog")' in python
    assert "--features images.npy" in shell
    assert "photo.jpg" not in shell
    card = make_card(kept=[])
    assert "--features texts.npy" in card
    assert 'search("a dog")' not in card
    assert "photo.jpg" not in card


def test_a_folder_that_no_line_can_hold_is_not_named():
    card = make_card("a\n```\nrm -rf ~")
    assert "\nrm -rf" not in card
    assert re.search(r'^diptych search FOLDER "a dog"$', card, flags=re.MULTILINE)
