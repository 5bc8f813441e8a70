"""The languages of the page: all words in all of them, and no other words than these."""

import re
from pathlib import Path

import pytest

from diptych.service._app import PAGE
from pages import check_width, first_image, shown_ids

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TEXT = "two butterflies above three cars"
SAME = {"a": "noun", "Many": "many", "ordinal": "n"}  # an English word with its article, and so on


@pytest.fixture
def strings(visit):
    page = visit("/healthz")
    module = page.evaluate("import('/strings.js').then(({STRINGS, LANGUAGES}) => ({STRINGS, LANGUAGES}))")
    return module["STRINGS"], module["LANGUAGES"]


def test_every_text_is_in_every_language_with_the_same_gaps_and_is_used(strings):
    texts, languages = strings
    code = "\n".join(
        path.read_text() for path in Path(PAGE).glob("*.*") if path.name not in ("strings.js", "style.css")
    )
    for key, translations in texts.items():
        assert len(translations) == len(languages), key
        assert all(text.strip() for text in translations), key
        gaps = [
            {SAME.get(gap, gap) for gap in re.findall(r"\{(\w+)\}", text)} | {"n" if key == "ownRank" else ""}
            for text in translations
        ]
        assert all(gap == gaps[0] for gap in gaps), key
        part = re.sub("(For|Like)$", "", key)  # hitsFor and hitsLike are named by their parts
        assert re.search(rf"""["'` ]{key}["'`@ ]|`{part}\$""", code), f"{key} is not used"
    used = re.findall(r"""\b(?:t|pieces)\((?:[^"'`()]* \? )?["'](\w+)["'](?: : ["'](\w+)["'])?""", code)
    assert {key for pair in used for key in pair if key} <= set(texts)


def named(page):
    """What a screen reader says, piece by piece."""
    lines = [line for line in page.locator("body").aria_snapshot().splitlines() if "- /url:" not in line]
    pieces = re.findall(r'"((?:[^"\\]|\\.)*)"|: (.+)$', "\n".join(lines), re.MULTILINE)
    return {re.sub(r"\\(.)", r"\1", text).strip('"') for piece in pieces for text in piece if text}


def strings_of(value):
    if isinstance(value, dict):
        return {text for pair in value.items() for each in pair for text in strings_of(each)}
    if isinstance(value, list):
        return {text for each in value for text in strings_of(each)}
    return {value} if isinstance(value, str) else set()


STATES = {
    "/": ".collection .tile",
    f"/?q={TEXT}&where.split=val&filter=year > 1": ".learn",
    "/?image={image}&plus=a star": ".line",
    "/?item={image}": ".writes",
    "/#pairs": ".pairs .choices",
    "/#model": "figure.chart.wide",
    "/?caption=nobody": ".notice",
}


def test_nothing_of_the_page_is_english_in_german(visit, serve, dated_folder, dated):
    base, image = serve(dated_folder, writable=True), dated.items("image")[-1].id
    pages = [
        visit("/healthz", base, locale=locale, viewport={"width": 390, "height": 844})
        for locale in ("en-US", "de-AT")
    ]
    data = []
    pages[0].on("response", lambda answer: data.append(answer) if "/v1/" in answer.url else None)
    for path, ready in STATES.items():
        data.clear()
        said = [read_state(page, base + path.format(image=image), ready) for page in pages]
        received = [answer.json() for answer in data if "json" in answer.headers.get("content-type", "")]
        if "#model" not in path:  # which shows what the server says of the model
            shown = {"name", "examples", "facets", "ranges", "keys"}
            received = [{key: each[key] for key in shown} if "card" in each else each for each in received]
        stored = "\n".join(set().union(*map(strings_of, received)) | {path})
        both = {"Diptych", "Filter", "Name", "Version", "ECE", "Text"}  # words of both languages
        words = {text: re.findall(r"\w+", text) for text in said[0] & said[1] - both}
        assert len(said[1]) > 10
        assert {
            text
            for text, parts in words.items()
            if any(re.search("[a-z]{3}", word) and word not in stored for word in parts)
        } == set(), path
    assert pages[1].evaluate("document.documentElement.lang") == "de"


def read_state(page, address, ready):
    """Open an address, and the form of an item; return what a screen reader says."""
    page.goto("about:blank")
    page.goto(address)
    page.locator(ready).first.wait_for()
    page.wait_for_function("!document.querySelector('[aria-busy=true]')")
    check_width(page, 390)
    said = named(page)
    if ready == ".writes":
        page.locator(".writes button").first.click()
        page.locator(".edit .switch").nth(1).click()
        said |= named(page)
    return said


def test_numbers_dates_and_plurals_follow_the_language(visit, serve, dated_folder, dated):
    base, image = serve(dated_folder), dated.items("image")[0].id
    page = visit("/", base, locale="de-DE")
    page.locator("#summary", has_text="320 Bilder · 1.600 Bildunterschriften").wait_for()
    page.goto(f"{base}/?q={TEXT}&where.split=val")
    page.locator(
        "#status", has_text=re.compile(f"^12 / 110 Bilder mit diesem Filter, zu „{TEXT}“")
    ).wait_for()
    page.goto(f"{base}/?item={image}")
    page.get_by_role("row", name="taken 01.01.2020").wait_for()
    page = visit(f"/?q={TEXT}&filter=year = 1990 and taken < '2020-01-02'", base, locale="fr-FR")
    first_image(page)
    page.locator("#status", has_text=f"1 / 1 image avec ce filtre, pour «\u00a0{TEXT}\u00a0»").wait_for()
    assert page.locator("html").get_attribute("lang") == "fr"
    # A language that the page does not have is read in the next one that it has.
    page = visit("/", base, locale="nl-NL")
    page.locator("#summary", has_text="1,600 captions").wait_for()
    assert page.locator("html").get_attribute("lang") == "en"


def test_names_that_are_the_models_own_stay(visit, serve, tones):
    from other_views import encode_captions, fit_tones

    page = visit("/", serve(fit_tones(tones, text_encoder=encode_captions)), locale="de")
    page.locator("#summary", has_text="120 audio items · 120 Bildunterschriften").wait_for()
    assert page.locator("#q").get_attribute("placeholder") == "audio beschreiben"
    page.fill("#q", "a high tone, fast and loud")
    shown_ids(page)
    page.locator("#status", has_text="12 audio items zu „a high tone, fast and loud“").wait_for()
