"""The collection, one item large, filters and numbers on the page, with mouse, keyboard and fingers."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from diptych import Retriever
from diptych.fusion import Fusion
from other_views import fit_tones
from pages import WIDE, WINDOWS, check_width, drop, find_captions, first_caption, first_image, ids, shown_ids

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TEXT = "two butterflies above three cars"
FOCUSED = "document.activeElement.dataset.item"


@pytest.fixture
def visit_dated(visit, serve, dated):
    base = serve(dated)
    return lambda path, width: visit(path, base=base, viewport={"width": width, "height": 844})


def wait_for_collection(page, expected):
    """Wait until the collection begins with these ids."""
    page.wait_for_function(
        """(expected) => expected.every((id, at) =>
          document.querySelector(`.collection li[data-at="${at}"] .tile`)?.dataset.item === id)""",
        arg=expected,
    )


def wait_for_item(page, item_id):
    """Wait until the address says that this item is open."""
    page.wait_for_function("(id) => new URLSearchParams(location.search).get('item') === id", arg=item_id)


def open_id(page):
    return re.search(r"[?&]item=([^&]*)", page.url)[1].replace("%2F", "/")


@WINDOWS
def test_an_item_is_opened_and_left_by_keyboard(visit_dated, dated, width):
    page = visit_dated(f"/?q={TEXT}", width)
    expected = ids(dated.search(TEXT, k=24))
    assert shown_ids(page) == expected[:12]
    page.locator(".tile").nth(1).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    item = dated.item(expected[1])
    captions = [each.text for each in dated.store.items(images=[item.id])]
    dialog.get_by_role("heading", name=captions[0]).wait_for()
    assert open_id(page) == item.id
    taken = item.metadata["taken"]
    day = f"{np.datetime64(taken).astype(object):%b} {int(str(taken)[8:10])}, {str(taken)[:4]}"
    expect(dialog).to_match_aria_snapshot(f"""
      - dialog:
        - img
        - button "Previous"
        - button "Next"
        - paragraph:
          - status: 2 of 12 shown
          - button "Close"
        - heading [level=2]
        - list "Captions"
        - link "Find captions"
        - paragraph:
          - link /More like this/
          - button /Add to the query/
          - button /Subtract from the query/
        - table:
          - rowgroup:
            - row "id {item.id}"
            - row "split {item.metadata["split"]}"
            - row "year {item.metadata["year"]}"
            - row "taken {day}"
    """)
    dialog.locator("img").evaluate("image => image.decode()")
    check_width(page, width)
    # The list goes on behind the last result that was shown.
    for at in range(2, 14):
        page.keyboard.press("ArrowRight")
        wait_for_item(page, expected[at])
    dialog.get_by_text("14 of 24 shown").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    page.wait_for_function(f"(id) => {FOCUSED} === id", arg=expected[13])
    page.wait_for_url(lambda url: "item=" not in url)
    assert shown_ids(page, 24) == expected
    page.go_forward()
    dialog.wait_for()
    assert open_id(page) == expected[13]
    page.go_back()
    dialog.wait_for(state="hidden")
    # An address opens it; there is nothing to go back to.
    page.goto(page.url + f"&item={expected[0]}")
    dialog.get_by_text("1 of 24 shown").wait_for()
    assert dialog.get_by_role("button", name="Previous").is_hidden()
    dialog.get_by_role("button", name="Close").click()
    page.wait_for_function(f"(id) => {FOCUSED} === id", arg=expected[0])
    page.locator(".tile").first.click()
    dialog.get_by_role("link", name="Find captions").click()
    assert first_caption(page)
    assert dialog.is_hidden()
    page.go_back()
    dialog.get_by_role("button", name="Add to the query").click()
    page.wait_for_url("**plus.id=*")
    dialog.wait_for(state="hidden")


def test_a_finger_moves_to_the_next_item_and_two_do_not(visit_dated, visit, serve, dated):
    page = visit(
        f"/?q={TEXT}", serve(dated), viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    expected = ids(dated.search(TEXT, k=12))
    first_image(page)
    page.locator(".tile").nth(1).tap()
    page.locator("#item-stage img").wait_for()
    assert "pinch-zoom" in page.locator("#item-stage").evaluate(
        "stage => getComputedStyle(stage).touchAction"
    )
    touch = page.context.new_cdp_session(page)

    def swipe(*ways):
        for kind, moved in (("touchStart", 0), ("touchMove", 0.5), ("touchMove", 1), ("touchEnd", None)):
            points = (
                []
                if moved is None
                else [{"x": 200 + moved * way, "y": 200 + 80 * i, "id": i} for i, way in enumerate(ways)]
            )
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    for way, at in ((-120, 2), (120, 1), (120, 0)):
        swipe(way)
        wait_for_item(page, expected[at])
    swipe(-90, 90)
    swipe(-20)
    page.wait_for_timeout(200)
    assert open_id(page) == expected[0]


def test_a_played_item_has_its_file_and_an_unknown_one_is_explained(visit, serve, tones):
    base = serve(fit_tones(tones))
    page = visit("/?item=tone 3", base=base)
    dialog = page.get_by_role("dialog")
    dialog.locator("audio[controls]").wait_for()
    assert dialog.get_by_role("link", name="Open original").get_attribute("target") == "_blank"
    with page.expect_download() as download:
        dialog.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == tones[0][3].name
    page.keyboard.press("Escape")
    page.locator("audio").wait_for(state="detached")
    page.goto(f"{base}/?item=nobody")
    dialog.get_by_text("This item does not exist").wait_for()


@WINDOWS
def test_the_collection_is_shown_in_any_order(visit_dated, dated, width):
    page = visit_dated("/", width)
    images = ids(dated.items("image"))
    wait_for_collection(page, images[::-1][:6])
    page.locator("#status", has_text="320 images").wait_for()
    expect(page.locator("#browse")).to_match_aria_snapshot("""
      - region "Collection":
        - list "Images":
          - listitem:
            - link
          - listitem:
            - link
    """)
    check_width(page, width)
    assert page.locator(".group").count() == 0
    page.get_by_label("order by").select_option("year")
    page.wait_for_url("**/?by=year")
    years = ids(dated.items("image", order_by="-year"))
    wait_for_collection(page, years[:6])
    # Ten items of 2019, and on the row of the last one, or below it, the first of 2018.
    page.locator("#browse").evaluate("browse => browse.scrollIntoView()")
    page.locator(".group.first", has_text="2018").wait_for()
    years_of_groups = [str(dated.item(each).metadata["year"]) for each in years[:20:10]]
    assert page.locator(".group.first").all_inner_texts()[:2] == years_of_groups == ["2019", "2018"]
    page.get_by_role("button", name="Greatest first").click()
    page.wait_for_url("**rising=1")
    wait_for_collection(page, ids(dated.items("image", order_by="year"))[:6])
    page.get_by_label("order by").select_option("taken")
    page.locator(".group.first", has_text="Jan 1, 2020").wait_for()
    page.get_by_label("split").select_option("val")
    held_out = ids(dated.items("image", order_by="taken", where={"split": "val"}))
    page.locator("#status", has_text=f"{len(held_out)} of 320 images pass the filter").wait_for()
    wait_for_collection(page, held_out[:6])
    check_width(page, width)
    page.goto(page.url.replace("split=val", "split=none"))
    page.get_by_role("button", name="Remove the filter").click()
    page.locator("#status", has_text="320 images").wait_for()


@WINDOWS
def test_the_collection_is_walked_by_keyboard_and_holds_few_elements(visit_dated, dated, width):
    page = visit_dated("/", width)
    newest = ids(dated.items("image"))[::-1]
    page.locator(".collection .tile").first.wait_for()
    height = page.evaluate("document.documentElement.scrollHeight")
    page.locator(".collection .tile").first.focus()
    for key, at in (("ArrowRight", 1), ("End", 319), ("Home", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        page.wait_for_function(f"(id) => {FOCUSED} === id", arg=newest[at])
    page.keyboard.press("ArrowDown")
    page.wait_for_function(f"(id) => {FOCUSED} !== id", arg=newest[1])
    columns = newest.index(page.evaluate(FOCUSED)) - 1
    tops = page.locator(".collection li").evaluate_all(
        "all => all.map((li) => li.getBoundingClientRect().top)"
    )
    assert columns == tops.count(min(tops)) == {1360: 7, 390: 3}[width]
    page.keyboard.press("PageDown")
    page.wait_for_function(f"(id) => {FOCUSED} !== id", arg=newest[1 + columns])
    assert page.locator(".collection li").count() < 90
    assert page.evaluate("document.documentElement.scrollHeight") == height
    # One stop of the Tab key; the item that was looked at last has the focus afterwards.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.foot') !== null")
    page.keyboard.press("Shift+Tab")
    at = newest.index(page.evaluate(FOCUSED))
    assert at > columns
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_text(f"{at + 1} of 320").wait_for()
    assert page.get_by_role("button", name="Add to the query").count() == 0
    for step in (1, 2, 3):
        page.get_by_role("button", name="Next").click()
        wait_for_item(page, newest[at + step])
    page.go_back()
    page.wait_for_function(f"(id) => {FOCUSED} === id", arg=newest[at + 3])
    # Who comes back from a search is where the list was.
    top = page.evaluate("scrollY")
    find_captions(page, f"[data-item='{newest[at]}']")
    first_caption(page)
    page.go_back()
    page.go_back()
    page.get_by_role("dialog").wait_for(state="hidden")
    page.wait_for_function("(top) => Math.abs(scrollY - top) < 2", arg=top)
    page.locator(f".tile[data-item='{newest[at]}']").wait_for()


def test_items_that_are_added_meanwhile_are_shown(visit, serve, rng):
    x = rng.normal(size=(200, 8)).astype("float32")
    names = [f"image {i}" for i in range(200)]
    library = Retriever.from_model(Fusion.zero_shot(8))
    library.add(x[:-1], x[:-1], ids=names[:-1])
    page = visit("/", serve(library), viewport={"width": 390, "height": 500})
    wait_for_collection(page, names[-2:-5:-1])
    library.add(x[-1:], x[-1:], ids=names[-1:])
    page.locator(".collection .tile").first.focus()
    page.keyboard.press("End")
    page.locator(".collection li[aria-posinset='200'] [data-item='image 0']").wait_for()


def test_long_lists_are_searched_and_ranges_have_histograms(visit, serve, rng):
    x = rng.normal(size=(90, 8)).astype("float32")
    names = [f"image {i}" for i in range(90)]
    metadata = {name: {"camera": f"camera {i % 30}", "size": i * i / 7} for i, name in enumerate(names)}
    library = Retriever.from_model(Fusion.zero_shot(8))
    library.add(x, x, ids=names, metadata=metadata)
    page = visit(base=serve(library), viewport={"width": 390, "height": 844})
    page.locator(".collection .tile").first.wait_for()
    field = page.get_by_label("camera")
    assert page.locator(f"#{field.get_attribute('list')} option").count() == 30
    field.fill("camera 7")
    field.press("Enter")
    page.locator("#status", has_text="3 of 90 images pass the filter").wait_for()
    wait_for_collection(page, ["image 67", "image 37", "image 7"])
    page.get_by_role("button", name="Filter", exact=True).click()
    heights = page.locator(".histogram rect").evaluate_all(
        "bars => bars.map((bar) => Number(bar.getAttribute('height')))"
    )
    counts = np.histogram([i * i / 7 for i in range(90)], 20)[0]
    np.testing.assert_allclose(heights, 24 * counts / counts.max(), rtol=1e-6)
    check_width(page, 390)


def test_numbers_say_what_they_count(visit_dated, dated):
    page = visit_dated(f"/?q={TEXT}&where.split=val&plus=keys&minus=a star", 1360)
    shown_ids(page)
    total = len(dated.items("image", where={"split": "val"}))
    heading = f"12 of {total} images that pass the filter, for “{TEXT}” + keys − a star"
    page.locator("#status", has_text=heading).wait_for()
    page.goto(page.url.partition("?")[0] + f"?q={TEXT}&k=200")
    page.locator("#status", has_text=f"First 200 images for “{TEXT}”").wait_for()


def test_a_file_finds_captions_and_images_like_it(visit_dated, dated):
    page = visit_dated("/", 390)
    page.locator(".collection .tile").first.wait_for()
    image = dated.items("image")[0]
    similar = [dated.item(each) for each in ids(dated.similar(image=image.path, k=12))]
    sent = []

    def answer(route):
        sent.append(route.request.post_data_buffer)
        hits = [
            {"id": each.id, "view": "image", "score": 0.5, "media": "image", "metadata": {}}
            for each in similar
        ]
        result = {"query": "x.png", "hits": hits, "ignored_words": [], "more": False}
        route.fulfill(json={"version": "1", "weighting": "x", "seconds": 0.01, "results": [result]})

    page.route("**/v1/similar", answer)
    drop(page, image.path)
    assert first_caption(page)
    part = page.get_by_label("A text to add to the query or to subtract from it")
    part.fill("keys")
    part.press("Enter")
    page.locator("#status", has_text="12 captions for this image + keys").wait_for()
    page.get_by_role("button", name="Images like it").click()
    page.locator("#status:focus", has_text="12 images like this image + keys").wait_for()
    assert shown_ids(page) == [each.id for each in similar]
    assert b'name="image"' in sent[0]
    assert b'[{"text":"keys"}]' in sent[0]
    # The file is still the query behind an open item.
    page.locator(".tile").first.click()
    page.get_by_role("dialog").wait_for()
    page.go_back()
    page.get_by_role("dialog").wait_for(state="hidden")
    page.get_by_role("button", name="Captions for it").click()
    page.locator("#status", has_text="12 captions for this image + keys").wait_for()
    check_width(page, 390)


def test_a_library_without_captions_finds_images_alone(visit, serve, rng):
    x = rng.normal(size=(60, 8)).astype("float32")
    library = Retriever.from_model(Fusion.zero_shot(8))
    library.add(x, None, ids=[f"image {i}" for i in range(60)])
    page = visit("/?image=image 3", base=serve(library))
    page.locator("#status", has_text="12 images like this image").wait_for()
    assert page.get_by_role("button", name="Captions for it").count() == 0
    page.locator(".tile").first.click()
    page.get_by_role("dialog").get_by_role("link", name="More like this").wait_for()
    assert page.get_by_role("link", name="Find captions").count() == 0


def test_examples_come_after_the_results_for_the_tab_key(visit):
    page = visit(f"/?q={TEXT}")
    first_image(page)
    orders = page.evaluate(
        """[".tile", "#aside .examples a"].map((selector) =>
          [...document.querySelectorAll("a, button, input")].indexOf(document.querySelector(selector)))"""
    )
    assert 0 < orders[0] < orders[1]
    boxes = [page.locator(each).first.bounding_box() for each in ("#text", "#aside")]
    assert boxes[0]["x"] == boxes[1]["x"] > page.locator("#images").bounding_box()["x"]


@pytest.mark.parametrize("path", ["/", f"/?q={TEXT}", "/?image={image}"])
def test_nothing_moves_when_images_arrive(visit, easy, path):
    page = visit("/healthz", viewport=WIDE)
    held = []
    page.route(re.compile("/(thumbnail|image)$"), lambda route: held.append(route))
    page.goto(page.url.replace("/healthz", path.format(image=easy.image)))
    page.locator(".tile img, .line img").first.wait_for()
    page.wait_for_timeout(500)  # the panels change their widths
    page.evaluate(
        """() => {
          window.moved = 0;
          const add = (list) => list.getEntries().forEach((entry) => { window.moved += entry.value; });
          new PerformanceObserver(add).observe({type: "layout-shift"});
        }"""
    )
    assert held
    for route in held:
        route.continue_()
    page.locator("img").first.evaluate("image => image.decode()")
    page.wait_for_timeout(200)
    assert page.evaluate("window.moved") == 0


def test_the_whole_page_is_small(visit):
    page = visit("/healthz")
    sizes = {}
    page.on("requestfinished", lambda sent: sizes.update({sent.url: sent.sizes()["responseBodySize"]}))
    page.route(re.compile("/(thumbnail|image)$"), lambda route: route.abort())
    page.goto(page.url.replace("healthz", ""))
    page.locator(".collection .tile").first.wait_for()
    assert len(sizes) > 15
    assert sum(sizes.values()) < 100_000, sizes
