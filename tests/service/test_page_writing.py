"""What is written on the page: captions, metadata, removing, adding, and pairs that look wrong."""

import re
import shutil
import time

import pytest
from playwright.sync_api import expect

from diptych import Retriever
from diptych.service import _service
from pages import check_width, drop, first_caption, first_image, ids
from servers import png

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MARKUP = "<img src=x onerror=\"document.title='written'\">"
REMOVALS = "window.sent = []; const fetch = window.fetch; window.fetch = (path, options) => {" + (
    "if (options?.method === 'DELETE') window.sent.push(path); return fetch(path, options); };"
)


@pytest.fixture
def visit_writable(visit, serve, dated_folder, tmp_path):
    """Open a page of a writable copy of the dated scenes; return it and the folder."""
    base = serve(shutil.copytree(dated_folder, tmp_path / "model"), writable=True)

    def go(path="/", width=1360, **options):
        return visit(path, base, viewport={"width": width, "height": 844}, **options), tmp_path / "model"

    return go


def stored(folder, item_id):
    """An item and the texts of its captions, as they are on the disk."""
    retriever = Retriever.load(folder)
    return retriever.item(item_id), [each.text for each in retriever.store.items(images=[item_id])]


def wait_until_stored(folder, item_id, present):
    until = time.monotonic() + 60
    while (item_id in Retriever.load(folder)) != present:
        assert time.monotonic() < until


def test_captions_and_metadata_are_edited_by_keyboard(visit_writable, dated):
    image = dated.items("image")[3].id
    page, folder = visit_writable(f"/?item={image}", 390)
    dialog = page.get_by_role("dialog")
    before, texts = stored(folder, image)
    dialog.get_by_role("button", name="Edit").press("Enter")
    first = dialog.get_by_label("Caption 1", exact=True)
    expect(first).to_be_focused()
    first.fill(f"{MARKUP} ")
    dialog.get_by_role("button", name="Remove caption 2").press("Enter")
    dialog.get_by_role("button", name="Add a caption").press("Enter")
    page.keyboard.type("two kites")
    dialog.get_by_label("year", exact=True).fill("1815.5")
    dialog.get_by_role("button", name="Remove split").press("Enter")
    for kind, name, value in (("text", MARKUP, "7"), ("number", "size", "-2"), ("boolean", "draft", "false")):
        dialog.get_by_role("button", name="Add a value").press("Enter")
        page.keyboard.type(name)
        dialog.get_by_label("Kind", exact=True).last.select_option(kind)
        field = dialog.get_by_label("Value", exact=True).last
        field.select_option(value) if kind == "boolean" else field.fill(value)
    expect(dialog).to_match_aria_snapshot("""
      - dialog "Edit":
        - paragraph:
          - button "Close"
        - form "Edit":
          - heading "Edit" [level=2]
          - group "Captions":
            - list
            - button "Add a caption"
          - group "Metadata":
            - list
            - button "Add a value"
          - paragraph:
            - button "Save"
            - button "Cancel"
    """)
    check_width(page, 390)
    page.keyboard.press("ArrowRight")  # which moves in a field, not to the next item
    dialog.get_by_label("Caption 1", exact=True).press("Tab")
    dialog.get_by_role("button", name="Save").press("Enter")
    expect(dialog.get_by_role("button", name="Edit")).to_be_focused()
    assert {MARKUP, "two kites"} <= set(dialog.locator("h2, .item-captions li").all_inner_texts())
    assert dialog.get_by_role("row", name=f"{MARKUP} 7").count() == 1
    assert "written" not in page.title()
    item, now = stored(folder, image)
    assert sorted(now) == sorted([MARKUP, *texts[2:], "two kites"])
    expected = {**before.metadata, "year": 1815.5, MARKUP: "7", "size": -2, "draft": False}
    del expected["split"]
    assert item.metadata == expected
    assert isinstance(item.metadata["draft"], bool)
    # Escape leaves the form, and then the dialog; what was typed is not stored.
    dialog.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Caption 1", exact=True).fill("no")
    page.keyboard.press("Escape")
    expect(dialog.get_by_role("button", name="Edit")).to_be_focused()
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    assert stored(folder, image)[1] == now


def test_what_cannot_be_stored_is_explained_in_the_form(visit_writable, dated):
    image = dated.items("image")[0].id
    page, folder = visit_writable(f"/?item={image}")
    before = stored(folder, image)
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Edit").click()
    save = dialog.get_by_role("button", name="Save")
    dialog.get_by_label("Caption 1", exact=True).fill("   ")
    save.click()
    expect(dialog.get_by_label("Caption 1", exact=True)).to_be_focused()
    dialog.get_by_label("Caption 1", exact=True).fill("star " * 500)
    dialog.get_by_role("button", name="Add a value").click()
    page.keyboard.type("year")
    save.click()
    message = dialog.get_by_label("Name", exact=True).evaluate("field => field.validationMessage")
    assert message == "This name is there already."
    dialog.get_by_label("Name", exact=True).fill("place")
    save.click()
    dialog.get_by_role("alert").filter(has_text="at most 2000 are accepted").wait_for()
    assert stored(folder, image) == before


def test_an_item_is_removed_unless_that_is_undone(visit_writable, dated):
    newest = ids(dated.items("image"))[::-1]
    page, folder = visit_writable("/", 390)
    page.clock.install()
    page.evaluate(REMOVALS)
    dialog, notice = page.get_by_role("dialog"), page.locator("#undo")
    page.locator(f".tile[data-item='{newest[1]}']").click()
    dialog.get_by_role("button", name="Remove").press("Enter")
    undo = notice.get_by_role("button", name="Undo")
    expect(undo).to_be_focused()
    assert "can be undone for 10 seconds" in page.locator("#announcement").inner_text()
    assert page.locator(f".tile[data-item='{newest[1]}']").is_hidden()
    check_width(page, 390)
    page.clock.run_for(9000)
    page.keyboard.press("Enter")
    expect(page.locator(f".tile[data-item='{newest[1]}']")).to_be_focused()
    page.clock.run_for(20_000)
    assert page.evaluate("window.sent") == []
    # What is removed is passed over by the arrow keys.
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Remove").click()
    undo.wait_for()
    page.locator(f".tile[data-item='{newest[0]}']").click()
    dialog.get_by_text("1 of 320").wait_for()
    page.keyboard.press("ArrowRight")
    dialog.get_by_text("3 of 320").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("window.sent") == []
    page.clock.run_for(10_000)
    page.locator("#status", has_text="319 images").wait_for()
    assert len(page.evaluate("window.sent")) == 1
    assert newest[1] not in Retriever.load(folder)
    assert notice.inner_text() == ""


def test_removals_are_sent_when_the_page_is_left(visit_writable, dated):
    image = dated.items("image")[-1].id
    page, folder = visit_writable(f"/?item={image}")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.locator("#undo .undo").wait_for()
    assert image in Retriever.load(folder)
    page.goto("about:blank")
    wait_until_stored(folder, image, False)


def test_a_removal_that_fails_can_be_repeated_or_undone(visit_writable, dated):
    image = dated.items("image")[-1].id
    page, folder = visit_writable("/")
    page.clock.install()
    page.locator(f".tile[data-item='{image}']").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.locator("#undo .undo").wait_for()
    page.route("**/v1/items/*", lambda route: route.abort())
    page.clock.run_for(11_000)
    page.locator("#undo").get_by_role("button", name="Try again").click()
    page.locator("#undo").get_by_role("alert").wait_for()
    page.locator("#undo").get_by_role("button", name="Undo").click()
    page.locator(f".tile[data-item='{image}']").wait_for()
    assert image in Retriever.load(folder)


def test_the_file_that_was_dropped_is_added(visit_writable, tmp_path):
    (tmp_path / "teal.png").write_bytes(png("teal"))
    page, folder = visit_writable("/", 390)
    page.locator(".collection .tile").first.wait_for()
    drop(page, tmp_path / "teal.png")
    first_caption(page)
    page.get_by_role("button", name="Add to the library").press("Enter")
    page.get_by_role("dialog").get_by_role("heading", name="teal.png").wait_for()
    assert "teal.png" in Retriever.load(folder)
    page.locator(".tile[data-item='teal.png']").wait_for()
    page.keyboard.press("Escape")
    page.locator("#summary", has_text="321 images").wait_for()
    expect(page.locator(".tile[data-item='teal.png']")).to_be_focused()
    drop(page, tmp_path / "teal.png")
    page.get_by_role("button", name="Add to the library").click()
    page.get_by_role("alert").filter(has_text="An item with this name is there already.").wait_for()


def test_several_files_are_added_and_errors_listed(visit_writable, tmp_path):
    for colour in ("red", "green"):
        (tmp_path / f"{colour}.png").write_bytes(png(colour))
    broken = {"name": f"{MARKUP}.png", "mimeType": "image/png", "buffer": b"<svg onload=alert(1)>"}
    good = [
        {"name": path.name, "mimeType": "image/png", "buffer": path.read_bytes()}
        for path in sorted(tmp_path.glob("*.png"))
    ]
    page, folder = visit_writable("/", 390)
    page.locator(".collection .tile").first.wait_for()
    page.locator("#file").set_input_files([good[0], broken, good[1]])
    dialog = page.get_by_role("dialog", name="Add 3 images")
    assert len(Retriever.load(folder).items("image")) == 320
    dialog.get_by_role("button", name="Add").press("Enter")
    dialog.get_by_role("status").filter(has_text="2 of 3 images added.").wait_for()
    expect(dialog).to_match_aria_snapshot("""
      - dialog "Add 3 images":
        - heading "Add 3 images" [level=2]
        - progressbar "Add 3 images"
        - status: 2 of 3 images added.
        - list "Not added":
          - listitem
        - paragraph:
          - button "Close"
    """)
    error = dialog.get_by_role("listitem").inner_text()
    assert error.startswith(f"{MARKUP}.png: The image is not in a supported format")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    check_width(page, 390)
    page.keyboard.press("Enter")
    page.locator("#status", has_text="322 images").wait_for()
    assert page.locator(".collection .tile").first.get_attribute("data-item") == "red.png"
    assert "written" not in page.title()


def test_a_server_that_cannot_write_offers_nothing_of_this(visit, serve, dated_folder, dated, path_of, easy):
    base = serve(dated_folder)
    page = visit(f"/?item={dated.items('image')[0].id}", base)
    page.get_by_role("dialog").get_by_role("link", name="Find captions").wait_for()
    assert page.get_by_role("button", name=re.compile("Edit|Remove")).count() == 0
    page.goto(f"{base}/#pairs")
    page.locator(".pairs li").first.wait_for()
    assert page.locator(".pairs button").count() == 0
    page.goto(f"{base}/?q=a star")
    first_image(page)
    drop(page, path_of(easy.image))
    first_caption(page)
    assert page.get_by_role("button", name="Add to the library").count() == 0
    assert page.locator("#file").get_attribute("multiple") is None


def test_what_a_refit_brought_is_said_where_hits_are_confirmed(visit_writable):
    page, _ = visit_writable("/?q=a star")
    first_image(page)
    title = page.locator(".learn").first.get_attribute("title")
    assert title == "Confirm that this is right. The model learns from it at its next refit."

    def refit(route):
        model = route.fetch().json()
        model["facts"]["refitted"] = {"pairs": 1240, "before": 1200}
        route.fulfill(json=model)

    page.route("**/v1/model", refit)
    page.reload()
    said = "The last refit learned from 1,240 pairs, 40 of them new."
    first_image(page)
    assert page.locator(".learn").first.get_attribute("title").endswith(f"right. {said}")
    page.get_by_role("link", name="Model").click()
    page.locator(".facts dd", has_text=said).wait_for()


def listed(page):
    page.locator(".pairs li").first.wait_for()
    return page.locator(".pair-text").all_inner_texts()


def test_pairs_that_look_wrong_are_kept_corrected_and_removed(visit_writable, dated):
    page, folder = visit_writable("/", 390)
    page.clock.install()
    page.get_by_role("link", name="Pairs").click()
    page.wait_for_url("**#pairs")
    audit = Retriever.load(folder).audit()
    expected = [dated.item(pair.text_id) for pair in audit][:20]
    assert listed(page) == [item.text for item in expected]
    assert f"{audit.flagged.sum()} of {len(audit):,} captions" in page.locator("#pairs").inner_text()
    doubts = page.locator(".doubt").all_inner_texts()
    shares = [int(re.sub(r"\D", "", doubt)) for doubt in doubts]
    assert shares == pytest.approx([100 * pair.wrong for pair in audit][:20], abs=1.001)
    assert doubts[-1] == f"{shares[-1]}\u00a0% likely to be wrong"
    assert max(shares) - min(shares) > 10
    row = page.locator(".pairs li").first
    text = re.escape(expected[0].text)
    expect(row).to_match_aria_snapshot(f"""
      - listitem:
        - link /Open/
        - link /{text}/
        - paragraph: /likely to be wrong/
        - paragraph:
          - button /Keep/
          - button /Correct/
          - button /Remove/
    """)
    check_width(page, 390)
    row.get_by_role("button", name="Keep").press("Enter")
    assert listed(page) == [item.text for item in expected[1:]]
    expect(row.get_by_role("button", name="Keep")).to_be_focused()
    row.get_by_role("button", name="Correct").press("Enter")
    expect(row.get_by_label("Caption")).to_be_focused()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(f"{MARKUP} a star")
    row.get_by_role("button", name="Save").press("Enter")
    row.get_by_text("Corrected").wait_for()
    assert row.locator(".pair-text").inner_text() == f"{MARKUP} a star"
    assert Retriever.load(folder).item(expected[1].id).text == f"{MARKUP} a star"
    assert "written" not in page.title()
    third = page.locator(".pairs li").nth(1)
    third.get_by_role("button", name="Remove").press("Enter")
    expect(third.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(third.get_by_role("button", name="Keep")).to_be_focused()
    third.get_by_role("button", name="Remove").press("Enter")
    page.clock.run_for(10_000)
    expect(page.locator(".pairs li")).to_have_count(18)
    expect(third.get_by_role("button", name="Keep")).to_be_focused()
    assert expected[2].id not in Retriever.load(folder)
    # The pairs may have another order now; none is shown twice.
    page.get_by_role("button", name="Show more").click()
    page.wait_for_function("() => document.querySelectorAll('.pairs li').length >= 38")
    captions = page.locator(".pair-text").evaluate_all("all => all.map((link) => link.dataset.caption)")
    assert len(captions) == len(set(captions)) < 58
    # What was kept stays away in this visit; an image opens, and going back closes it.
    page.locator(".pairs .tile").first.click()
    page.get_by_role("dialog").get_by_role("link", name="Find captions").wait_for()
    page.go_back()
    page.get_by_role("dialog").wait_for(state="hidden")
    page.get_by_role("link", name="Search").click()
    page.get_by_role("link", name="Pairs").click()
    assert not {item.text for item in expected[:3]} & set(listed(page))


def test_an_audit_that_takes_long_is_waited_for(visit, serve, dated_folder, monkeypatch):
    monkeypatch.setattr(_service, "AUDIT_SECONDS", 60)
    page = visit("/", serve(dated_folder))
    refused = []

    def answer(route):
        refused.append(route)
        body = '{"type": "x:busy", "status": 503, "detail": "no."}'
        route.fulfill(status=503, content_type="application/problem+json", body=body)

    page.route("**/v1/audit*", answer, times=2)
    page.clock.install()
    page.get_by_role("link", name="Pairs").click()
    page.get_by_role("status").filter(has_text="being checked; this list appears by itself").wait_for()
    for count in (1, 2):
        while len(refused) < count:
            page.wait_for_timeout(10)
        page.clock.run_for(3000)
    assert len(listed(page)) == 20


def test_captions_that_cannot_be_checked_say_why(visit, rng, serve):
    x = rng.normal(size=(60, 4)).astype("float32")
    page = visit("/#pairs", serve(Retriever.from_features(x, x)))
    page.get_by_text("There are 60 images with captions; an audit needs 100.").wait_for()
