"""The page in a real browser, with mouse and keyboard, wide and narrow; every test saves a screenshot."""

import re
from pathlib import Path

import pytest

from diptych import Retriever
from diptych.fusion import Fusion
from diptych.report._page import page as make_page
from diptych.report._page import section, show_items
from other_views import encode_captions, fit_molecules, fit_tones, tone_encoder
from pages import (
    PHONE,
    WIDE,
    WINDOWS,
    check_width,
    contrast,
    drop,
    find_captions,
    first_caption,
    first_image,
    ids,
    shown_ids,
    wait_for_notice,
)
from servers import TOKEN

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_typing_a_text_shows_its_image_first(visit, easy):
    page = visit()
    page.locator("#q").press_sequentially(easy.text, delay=5)
    page.locator(f".tile:first-child[data-item='{easy.image}']").wait_for()
    shown = page.locator(".tile img").first
    shown.evaluate("image => image.decode()")
    assert shown.evaluate("image => image.naturalWidth") == 96
    assert re.fullmatch(r"score\s*\d\.\d{3}", page.locator(".tile .num").first.inner_text().strip())
    assert "q=" in page.url
    # The address is enough to come back.
    assert first_image(visit(page.url.partition("/?")[1] + page.url.partition("/?")[2])) == easy.image


def test_dropping_an_image_shows_its_caption(visit, easy, path_of):
    page = visit()
    drop(page, path_of(easy.image))
    assert first_caption(page) == easy.id
    assert easy.text in page.locator(".line").first.inner_text()
    assert (
        page.locator(".chosen img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 96
    )


@WINDOWS
def test_an_image_is_chosen_or_pasted(visit, easy, path_of, width):
    page = visit(viewport={"width": width, "height": 844})
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="choose one").click()
    chooser.value.set_files(path_of(easy.image))
    assert first_caption(page) == easy.id
    page.evaluate(
        """async (source) => {
          const content = await (await fetch(source)).blob();
          const transfer = new DataTransfer();
          transfer.items.add(new File([content], "pasted.webp", {type: "image/webp"}));
          document.dispatchEvent(new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true}));
        }""",
        f"v1/items/{easy.image.replace('/', '%2F')}/image",
    )
    page.wait_for_selector(".chosen figcaption:has-text('pasted.webp')")
    assert first_caption(page)


def test_results_link_to_the_other_view_and_back(visit, easy):
    page = visit(f"/?q={easy.text}")
    assert first_image(page) == easy.image
    find_captions(page)
    assert first_caption(page) == easy.id
    page.wait_for_url("**/?image=*")
    assert page.locator(".line").first.locator(".own-mark").count() == 1
    page.locator(".line").first.click()
    assert first_image(page) == easy.image
    page.wait_for_url("**/?caption=*")
    assert page.locator("#q").input_value() == easy.text
    assert page.locator("li.own .tile").first.get_attribute("data-item") == easy.image
    page.go_back()
    assert first_caption(page) == easy.id
    page.go_back()
    assert first_image(page) == easy.image


def test_the_model_tab_shows_recalls_and_charts(visit):
    page = visit()
    page.get_by_role("link", name="Model").click()
    page.wait_for_url("**#model")
    page.locator("figure.chart").first.wait_for()
    assert [page.locator("tbody").nth(i).locator("tr").count() for i in (0, 1)] == [4, 6]
    grid = page.evaluate("async () => (await (await fetch('/v1/model')).json()).path")
    points = len(grid["x"]) * len(grid["y"])  # 20 × 20, or more where the grid was extended
    assert page.locator("figure.chart:not(.wide) rect").count() == 2 * points >= 2 * 20 * 20
    assert page.locator("polyline.curve").count() == 2
    assert "Selected" in page.locator("figure.chart svg").first.get_attribute("aria-label")
    page.get_by_role("link", name="Search").click()
    page.wait_for_selector(".examples a")


def test_examples_can_be_searched(visit):
    page = visit()
    page.locator(".examples a").first.click()
    assert first_image(page)
    page = visit()
    find_captions(page)
    assert first_caption(page)


def test_a_filter_without_results_can_be_removed(visit, easy):
    page = visit(f"/?q={easy.text}")
    first_image(page)
    page.get_by_label("split").select_option("val")
    page.wait_for_url("**where.split=val*")
    first_image(page)
    filtered = page.url
    for other, title in (("split=none", "No results"), ("spilt=val", "This filter is not possible")):
        page.goto(filtered.replace("split=val", other))
        wait_for_notice(page, title)
        page.get_by_role("button", name="Remove the filter").click()
        assert first_image(page) == easy.image


def test_unknown_words_and_items_are_explained(visit):
    wait_for_notice(visit("/?q=zzyzx"), "The model knows none of these words")
    wait_for_notice(visit("/?image=nobody"), "This item does not exist")


def test_ignored_words_are_named_above_the_images(visit, easy):
    page = visit(f"/?q={easy.text} quokka كلب <img>")
    first_image(page)
    note = page.locator("#images-body > .ignored")
    assert note.inner_text() == "Ignored words that the model does not know: quokka, كلب, img."
    assert note.locator("bdi").all_inner_texts() == ["quokka", "كلب", "img"]
    assert page.locator("#images-body > .ignored:first-child").count() == 1
    assert "quokka" in page.locator("#announcement").inner_text()
    page.fill("#q", easy.text)
    note.wait_for(state="detached")


def test_a_file_that_is_not_an_image_is_explained(visit, tmp_path):
    (tmp_path / "no.png").write_bytes(b"<svg onload=alert(1)>")
    page = visit()
    drop(page, tmp_path / "no.png")
    wait_for_notice(page, "This image cannot be opened")


def test_an_unreachable_busy_or_failing_server_is_explained(visit, easy):
    page = visit()
    page.route("**/v1/search", lambda route: route.abort())
    page.fill("#q", easy.text)
    wait_for_notice(page, "The server does not answer")
    page.unroute("**/v1/search")
    page.get_by_role("button", name="Try again").click()
    assert first_image(page) == easy.image
    for status, title in ((503, "The server is busy"), (500, "Something went wrong")):
        page.route("**/v1/search", answering(status))
        page.fill("#q", f"{easy.text} {status}")
        wait_for_notice(page, title)
        page.unroute("**/v1/search")


def answering(status):
    body = '{"type": "x:y", "title": "t", "status": 0, "detail": "no."}'
    return lambda route: route.fulfill(status=status, content_type="application/problem+json", body=body)


def test_input_before_the_model_is_loaded_is_not_lost(visit, easy, path_of):
    for act, first in (
        (lambda page: page.fill("#q", easy.text), lambda page: first_image(page) == easy.image),
        (lambda page: drop(page, path_of(easy.image)), lambda page: first_caption(page) == easy.id),
    ):
        routes = []
        page = visit("/healthz")
        page.route("**/v1/model", hold(routes))
        page.goto(page.url.replace("healthz", ""))
        act(page)
        page.wait_for_timeout(400)
        routes[0].continue_()
        assert first(page)


def hold(routes):
    return lambda route: routes.append(route)


def test_a_slow_search_shows_placeholders(visit):
    page = visit()
    page.route("**/v1/search", lambda route: None)
    page.fill("#q", "a star")
    page.locator(".placeholders").wait_for()
    assert page.locator("#images-body").get_attribute("aria-busy") == "true"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/?q=a star",
            "/?q=a star&compare=1",
            "/?image={image}",
            "/?image={image}&similar=1",
            "/?item={image}&by=split",
            "/#model",
        ),
        "/?q=a star&minus=two boats on the sea under a starry sky&plus.id={image}&filter=split != 'train'",
    ],
)
def test_the_page_fits_a_window_of_320_pixels(visit, easy, path):
    page = visit(path.format(image=easy.image), viewport=PHONE)
    page.wait_for_selector(".examples a, .tile, .line, table", state="attached")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    spilled = page.evaluate(
        """[...document.querySelectorAll("main *")].filter((element) =>
          !element.closest(".scroll, .visually-hidden") && element.getBoundingClientRect().right > 321)
          .map((element) => element.outerHTML.slice(0, 80))"""
    )
    assert spilled == []


def test_the_page_works_by_keyboard(visit, easy):
    page = visit()
    page.wait_for_selector(".examples a")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type(easy.text)
    page.keyboard.press("Enter")
    assert first_image(page) == easy.image
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('tile')"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Find captions").focus()
    page.keyboard.press("Enter")
    assert first_caption(page) == easy.id
    assert "captions for this image" in page.locator("#announcement").inner_text()


def test_elements_have_names_for_screen_readers(visit, easy):
    page = visit(f"/?q={easy.text}")
    first_image(page)
    for role, name in (
        ("textbox", "Describe the image you are looking for"),
        ("region", "Images"),
        ("region", "Text"),
        ("navigation", "Sections"),
    ):
        assert page.get_by_role(role, name=name, exact=True).count() == 1, name
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, a, select, textarea, input:not([hidden])")].filter(
          (element) => !element.textContent.trim() && !element.ariaLabel && !element.labels?.length
        ).length"""
    )
    assert nameless == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_themes(visit, easy, scheme):
    page = visit(f"/?q={easy.text}", color_scheme=scheme)
    first_image(page)
    for selector in (".tile-caption", ".num", "#status", ".note", ".eyebrow", ".examples a", ".foot p"):
        assert contrast(page, selector) >= 4.5, selector


def test_the_selected_theme_is_kept(visit):
    page = visit(color_scheme="light")
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_the_page_asks_for_the_token(visit, serve, folder, easy):
    base = serve(folder, token=TOKEN)
    page = visit(f"/?q={easy.text}", base=base)
    asked = page.get_by_label("Ask the person who runs it.")
    asked.fill("not the token at all")
    page.get_by_role("button", name="Enter").click()
    page.locator(".wrong", has_text="not the token").wait_for()
    asked.fill(TOKEN)
    page.get_by_role("button", name="Enter").click()
    assert first_image(page) == easy.image
    page.locator(".tile img").first.evaluate("image => image.decode()")
    # The right one in the address replaces a wrong one there.
    page = visit(f"/?q={easy.text}#token=not-the-token-at-all", base=base)
    page.get_by_label("Ask the person who runs it.").wait_for()
    page.evaluate("(token) => { location.hash = `token=${token}`; }", TOKEN)
    assert first_image(page) == easy.image
    assert page.locator("#message").inner_text() == ""
    assert "null" not in page.locator("main").inner_text()
    assert TOKEN not in page.url


@WINDOWS
def test_a_model_of_features_is_searched_by_its_items(visit, serve, of_features, width):
    page = visit(base=serve(of_features[0]), viewport={"width": width, "height": 844})
    page.get_by_text("no text encoder for this model").wait_for()
    page.locator("#drop-text", has_text="This server has no image encoder for this model").wait_for()
    assert page.locator("#q").is_disabled()
    assert page.locator("#choose").count() == 0
    shown = page.locator("main").inner_text()
    assert not any(word in shown for word in ("Python", "image_encoder", "--", "sha256"))
    page.locator(".examples a").first.click()
    assert first_image(page)
    find_captions(page)
    assert first_caption(page)


@WINDOWS
def test_the_parts_of_a_fusion_are_compared_side_by_side(visit, serve, fused_scenes, easy, width):
    base, fused = serve(fused_scenes), Retriever.load(fused_scenes)
    page = visit(base=base, viewport={"width": width, "height": 900})
    assert not page.locator("#compare").is_visible()
    page.goto(f"{base}/?caption={easy.id.replace('#', '%23')}")
    first_image(page)
    button = page.get_by_role("button", name=re.compile("^Compare( parts)?$"))
    button.click()
    features = fused.store.features("text", [easy.id])[0]
    names = [None, "uncorrected", "pyramid × words", "pyramid × others"]
    for name in names:
        column = page.locator(f'.column[data-weighting="{name or "fusion"}"]')
        column.locator(".tile").first.wait_for()
        ids = column.locator(".tile").evaluate_all("tiles => tiles.map((tile) => tile.dataset.item)")
        wanted = [hit.id for hit in fused.search(features, k=12, weighting=name)]
        assert ids == wanted
        rank = wanted.index(easy.image) + 1 if easy.image in wanted else None
        label = column.locator(".own-rank").inner_text()
        assert (f"comes {rank}" in label) if rank else ("not among" in label)
        assert column.locator(".tag").count() == (name is None)
        column.locator(".tile img").first.evaluate("image => image.decode()")
    assert page.locator(".column").count() == len(names)
    assert "Weight 0." in page.locator('.column[data-weighting="pyramid × words"] .note').first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(f"{base}/?image={easy.image}&compare=1")
    page.locator(".column .line").first.wait_for()
    assert page.locator(".column").count() == len(names)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    button.click()
    page.wait_for_selector(".columns", state="detached")
    page.goto(f"{base}/#model")
    for task in ("text → images", "image → captions"):
        table = page.get_by_role("region", name=f"Parts, {task}")
        table.wait_for()
        assert table.locator("tbody th").all_inner_texts() == ["pyramid × words", "pyramid × others"]
        assert "weighting" in table.locator("tbody td.left").first.inner_text()
    assert page.get_by_text("Correction for hubness: an item loses").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_model_without_several_parts_has_nothing_to_compare(visit, serve, easy, rng):
    x = rng.normal(size=(60, 8)).astype("float32")
    zero_shot = Retriever.from_model(Fusion.zero_shot(8))
    zero_shot.add(x, x, ids=[f"image {i}" for i in range(60)])
    for page, first in (
        (visit(f"/?q={easy.text}&compare=1"), first_image),
        (visit("/?image=image 3&compare=1", base=serve(zero_shot)), first_caption),
    ):
        first(page)
        assert not page.locator("#compare").is_visible()
        assert page.locator(".columns").count() == 0


def test_right_to_left_text_does_not_reorder_the_page(visit):
    arabic = "نجمة حمراء (2)"
    page = visit()
    page.route(
        "**/v1/search",
        lambda route: route.fulfill(
            json={
                "version": "1",
                "weighting": "asymmetric",
                "seconds": 0.004,
                "results": [{"query": arabic, "hits": [image_hit(arabic)]}],
            }
        ),
    )
    page.locator("#q").fill(arabic)
    page.locator(".tile").first.wait_for()
    heading = page.locator("#status bdi")
    assert heading.inner_text() == arabic
    assert page.locator("#status").inner_text().startswith(f"1 image for “{arabic}”")
    # The heading reads from left to right around the query: what follows it lies to the right of it.
    assert page.locator("#status .note").bounding_box()["x"] > heading.bounding_box()["x"]
    for selector in ("#q", ".tile-caption"):
        direction = page.locator(selector).first.evaluate("element => getComputedStyle(element).direction")
        assert direction == "rtl"


def image_hit(text):
    """A hit without a file, whose caption is ``text``."""
    return {
        "id": "x",
        "view": "image",
        "score": 0.5,
        "captions": [{"id": "x#0", "text": text}],
        "has_file": False,
        "metadata": {},
    }


def test_a_filter_may_have_any_name(visit, easy):
    """What matters is that no script fails: ``visit`` looks for that."""
    for name in ("constructor", "__proto__", "toString"):
        visit(f"/?q={easy.text}&where.{name}=x").locator(".notice-title").wait_for()


def play(page, selector):
    """Play the first audio or video with its own controls' means; return its length in seconds."""
    return page.locator(selector).first.evaluate(
        """async (player) => {
          await player.play();
          if (player.readyState < 2 || player.error) throw new Error("it cannot be played");
          return player.duration;
        }"""
    )


@WINDOWS
def test_audio_is_found_and_played(visit, serve, tones, width):
    retriever = fit_tones(tones, text_encoder=encode_captions)
    page = visit(base=serve(retriever), viewport={"width": width, "height": 844})
    page.locator("#summary", has_text="120 audio items · 120 captions").wait_for()
    assert page.locator("#images-title").inner_text().lower() == "audio"
    assert page.locator("#q").get_attribute("placeholder") == "Describe the audio"
    assert page.locator("#drop-text").inner_text() == (
        "This server has no audio encoder for this model; choose one of the stored audio items instead."
    )
    assert page.locator("#choose").count() == 0
    page.locator(".collection .own-text").nth(4).wait_for()
    check_width(page, width)
    page.fill("#q", "a high tone, fast and loud")
    assert first_image(page) == retriever.search("a high tone, fast and loud", k=1)[0].id
    page.locator("#status", has_text="12 audio items for “a high tone, fast and loud”").wait_for()
    players = page.locator(".tile-caption")
    assert players.count() == page.locator(".grid audio[controls][preload=none]").count() == 12
    assert page.locator("a audio, main img").count() == 0
    assert 0.4 < play(page, ".grid audio") < 1
    check_width(page, width)
    find_captions(page)
    assert first_caption(page)
    page.locator("#status", has_text="12 captions for this audio").wait_for()
    assert 0.4 < play(page, ".chosen audio") < 1
    check_width(page, width)


@WINDOWS
def test_an_uploaded_audio_file_finds_captions(visit, serve, tones, width):
    base = serve(fit_tones(tones, image_encoder=tone_encoder(), text_encoder=encode_captions))
    page = visit(base=base, viewport={"width": width, "height": 844})
    page.locator("#drop-text", has_text="Drop an audio file, or choose one").wait_for()
    assert page.locator("#file").get_attribute("accept") == ".wav"
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="choose one").click()
    chooser.value.set_files(tones[0][3])
    first_caption(page)
    assert tones[1][3] in page.locator(".line").first.inner_text()
    assert 0.4 < play(page, ".chosen audio") < 1
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File(["no sound"], "broken.wav", {type: "audio/wav"}));
          document.dispatchEvent(new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true}));
        }"""
    )
    wait_for_notice(page, "This audio cannot be opened")
    page.locator(".unplayable").wait_for()


def test_video_is_played(visit, serve, tones, tmp_path):
    """The browser records it."""
    recorded = visit("/healthz").evaluate(
        """async () => {
          const canvas = document.createElement("canvas");
          const recorder = new MediaRecorder(canvas.captureStream(25), {mimeType: "video/webm"});
          const pen = canvas.getContext("2d"), parts = [];
          recorder.ondataavailable = (event) => parts.push(event.data);
          recorder.start();
          for (let frame = 0; frame < 25; frame += 1) {
            pen.fillStyle = `hsl(${frame * 14} 80% 50%)`;
            pen.fillRect(0, 0, canvas.width, canvas.height);
            await new Promise((done) => setTimeout(done, 30));
          }
          await new Promise((done) => { recorder.onstop = done; recorder.stop(); });
          return [...new Uint8Array(await new Blob(parts).arrayBuffer())];
        }"""
    )
    video = tmp_path / "clip.webm"
    video.write_bytes(bytes(recorded))
    page = visit("/?image=tone 0", base=serve(fit_tones(tones, [video, *tones[0][1:]])))
    first_caption(page)
    play(page, ".chosen video[controls]")
    assert page.locator(".chosen video").evaluate("video => video.videoWidth") == 300


@WINDOWS
def test_items_that_are_texts_are_shown_and_entered(visit, serve, width):
    page = visit(base=serve(fit_molecules()), viewport={"width": width, "height": 844})
    page.locator("#summary", has_text="80 molecules · 80 names").wait_for()
    assert "Search molecules with names" in page.locator("h1").first.inner_text()
    page.get_by_label("Enter a molecule").fill("CCCCN")
    page.keyboard.press("Enter")
    first_caption(page)
    page.locator("#status", has_text="12 names for “CCCCN”").wait_for()
    assert page.locator(".line").first.inner_text().startswith("an amine with four carbon atoms")
    page.wait_for_url("**/?input=CCCCN")
    assert page.locator(".chosen .own-text").inner_text() == "CCCCN"
    check_width(page, width)
    page.locator(".line").first.click()
    assert first_image(page)
    page.locator("#status", has_text="12 molecules for").wait_for()
    assert page.locator("li.own .tile .own-text").inner_text() == "CCCCN"
    check_width(page, width)
    page.reload()
    page.go_back()
    first_caption(page)
    assert page.locator("#input").input_value() == "CCCCN"


def test_other_files_are_named_and_downloaded_if_they_are_sent(visit, serve, tones, tmp_path):
    files = [tmp_path / f"<b>{path.stem}.csv" for path in tones[0]]
    for file in files:
        file.write_text("time,value\n0,1\n")
    retriever = fit_tones(tones, files, views=("time series", "text"), text_encoder=encode_captions)
    page = visit("/?q=a low tone, slow and quiet", base=serve(retriever))
    assert first_image(page)
    page.locator("#status", has_text="12 time series for").wait_for()
    assert page.locator(".tile .own-text").first.inner_text().startswith("<b>")
    assert page.locator(".download").count() == 0
    page = visit("/?q=a low tone, slow and quiet", base=serve(retriever, send_files=True))
    with page.expect_download() as download:
        page.locator(".download").first.click()
    assert Path(download.value.path()).read_text() == "time,value\n0,1\n"


TEXT = "two butterflies above three cars"


@WINDOWS
def test_texts_and_results_are_added_to_a_query_and_subtracted(visit_dated, dated, width):
    page = visit_dated(f"/?q={TEXT}", width)
    assert shown_ids(page) == ids(dated.search(TEXT, k=12))
    part = page.get_by_label("A text to add to the query or to subtract from it")
    part.fill("the ocean")
    page.get_by_role("button", name="Add the text").click()
    page.wait_for_url("**plus=the+ocean*")
    part.fill("keys")
    page.get_by_role("button", name="Subtract the text").click()
    page.wait_for_url("**minus=keys*")
    part.fill("- a star")
    part.press("Enter")
    page.wait_for_url("**minus=a+star*")
    assert page.evaluate("document.activeElement.id") == "part"
    plus, minus = ["the ocean"], ["keys", "a star"]
    page.locator("#status", has_text=f"12 images for “{TEXT}” + the ocean − keys − a star").wait_for()
    assert shown_ids(page) == ids(dated.search(TEXT, k=12, plus=plus, minus=minus))
    # A result is added by its id, and can be removed again.
    added = shown_ids(page)[3]
    page.locator(".grid li").nth(3).get_by_role("button", name="Add to the query").click()
    page.wait_for_url("**plus.id=*")
    composed = ids(dated.search(TEXT, k=12, plus=[*plus, dated.item(added).path], minus=minus))
    assert shown_ids(page) == composed
    page.reload()
    assert shown_ids(page) == composed
    page.locator(".chip img").evaluate("image => image.decode()")
    signs = page.locator(".chip").evaluate_all("chips => chips.map((chip) => chip.innerText[0]).join('')")
    assert signs == "+−−+"
    check_width(page, width)
    page.get_by_role("button", name="Remove − keys").click()
    page.locator(".chip").nth(3).wait_for(state="detached")
    assert shown_ids(page) == ids(
        dated.search(TEXT, k=12, plus=[*plus, dated.item(added).path], minus=minus[1:])
    )
    page.go_back()
    page.locator(".chip").nth(3).wait_for()
    assert shown_ids(page) == composed
    # Typing another text keeps the parts.
    page.locator("#q").fill("three keys")
    page.locator("#status", has_text="12 images for “three keys” + the ocean").wait_for()


@WINDOWS
def test_an_image_and_similar_items_are_composed_too(visit_dated, dated, width, path_of):
    image = ids(dated.search(TEXT, k=1))[0]
    path = dated.item(image).path
    page = visit_dated(f"/?image={image}&minus=keys", width)
    assert shown_ids(page) == ids(dated.annotate(path, k=12, minus=["keys"]))
    page.goto(f"{page.url}&similar=1")
    similar = [hit for hit in ids(dated.similar(image=path, k=13, minus=["keys"])) if hit != image]
    assert shown_ids(page) == similar
    page.locator("#status", has_text="12 images like this image − keys").wait_for()
    check_width(page, width)
    # An uploaded file has no address, and its parts do.
    with page.expect_file_chooser() as chooser:
        page.locator("#choose").dispatch_event("click")
    chooser.value.set_files(path)
    shown_ids(page)
    page.locator("#part").fill("-keys")
    page.locator("#part").press("Enter")
    page.wait_for_url("**minus=keys*")
    assert shown_ids(page) == ids(dated.annotate(path, k=12, minus=["keys"]))


@WINDOWS
def test_more_like_this_finds_images_and_captions(visit_dated, dated, width):
    page = visit_dated(f"/?q={TEXT}", width)
    image = shown_ids(page)[1]
    page.get_by_role("link", name="More like this").nth(1).click()
    page.wait_for_url("**/?image=*&similar=1")
    page.locator("#status", has_text="12 images like this image").wait_for()
    assert shown_ids(page) == ids(dated.similar(image=dated.item(image).path, k=13))[1:]
    page.locator(".chosen img").evaluate("image => image.decode()")
    assert page.locator("#compare").is_hidden()
    check_width(page, width)
    page.go_back()
    assert shown_ids(page) == ids(dated.search(TEXT, k=12))
    caption = next(item for item in dated.store.items("text") if item.text)
    page.goto(page.url.partition("?")[0] + f"?image={caption.image}")
    shown_ids(page)
    page.locator(".lines li", has_text=caption.text).first.get_by_role("link", name="More like this").click()
    page.wait_for_url("**/?caption=*&similar=1")
    page.locator("#status", has_text=f"12 captions like “{caption.text}”").wait_for()
    assert caption.id not in shown_ids(page)
    assert page.locator("#q").input_value() == caption.text
    check_width(page, width)


@WINDOWS
def test_ranges_and_conditions_filter(visit_dated, dated, width):
    page = visit_dated(f"/?q={TEXT}", width)
    shown_ids(page)
    page.get_by_role("button", name="Filter", exact=True).click()
    years, days = page.get_by_role("group", name="year"), page.get_by_role("group", name="taken")
    years.get_by_label("from").fill("2005")
    years.get_by_label("from").press("Enter")
    page.wait_for_url("**from.year=2005*")
    days.get_by_label("to").fill("2020-07-01")
    days.get_by_label("to").blur()
    page.wait_for_url("**to.taken=2020-07-01*")
    where = {"year": {"$gte": 2005}, "taken": {"$lte": "2020-07-01"}}
    assert shown_ids(page) == ids(dated.search(TEXT, k=12, where=where))
    condition = page.get_by_label("Condition")
    condition.fill('year < 2010 and not split = "train"')
    condition.press("Enter")
    page.wait_for_url("**filter=year*")
    found = ids(dated.search(TEXT, k=12, where={"$and": [where, 'year < 2010 and not split = "train"']}))
    assert 0 < len(found) < 12
    assert shown_ids(page, len(found)) == found
    page.locator(".more", has_text="No more images.").wait_for()
    page.reload()
    assert shown_ids(page, len(found)) == found
    assert condition.input_value() == 'year < 2010 and not split = "train"'
    check_width(page, width)
    # What the server says of a wrong condition is beside it.
    condition.fill("year >> 3")
    condition.press("Enter")
    wait_for_notice(page, "This filter is not possible")
    assert ">>" in page.locator("#filter-error").inner_text()
    assert condition.get_attribute("aria-invalid") == "true"
    check_width(page, width)
    page.get_by_role("button", name="Remove the filter").click()
    assert shown_ids(page) == ids(dated.search(TEXT, k=12))
    assert condition.input_value() == years.get_by_label("from").input_value() == ""


@WINDOWS
def test_show_more_appends_the_next_results(visit_dated, dated, width):
    page = visit_dated(f"/?q={TEXT}", width)
    expected = ids(dated.search(TEXT, k=36))
    assert shown_ids(page) == expected[:12]
    first = page.locator(".tile").first.element_handle()
    more = page.get_by_role("button", name="Show more")
    more.scroll_into_view_if_needed()
    more.focus()
    top = page.evaluate("scrollY")
    more.press("Enter")
    assert shown_ids(page, 24) == expected[:24]
    assert page.evaluate("scrollY") == top
    assert page.evaluate("document.activeElement.dataset.item") == expected[12]
    assert first.evaluate("tile => tile.isConnected")
    assert page.url.endswith("k=24")
    assert "24 images for" in page.locator("#announcement").inner_text()
    more.click()
    assert shown_ids(page, 36) == expected
    top = page.evaluate("scrollY")
    page.reload()
    assert shown_ids(page, 36) == expected
    page.wait_for_function("(top) => Math.abs(scrollY - top) < 2", arg=top)
    find_captions(page, f".tile[data-item='{expected[30]}']")
    first_caption(page)
    page.go_back()
    page.get_by_role("dialog").wait_for()
    page.go_back()
    page.get_by_role("dialog").wait_for(state="hidden")
    assert shown_ids(page, 36) == expected
    page.goto(page.url.replace("k=36", "k=500"))
    page.locator(".more", has_text="Only the first 200 are shown.").wait_for()


def test_show_more_starts_again_if_items_were_removed(visit, serve):
    retriever = fit_molecules()
    page = visit("/?input=CCCCN", base=serve(retriever))
    gone, *_ = shown_ids(page)
    retriever.remove([gone])
    page.get_by_role("button", name="Show more").click()
    assert shown_ids(page, 24) == ids(retriever.annotate("CCCCN", k=24))


def _is_split(hits):
    """Whether some of the hits have a probability of 0.1 or more, and others do not."""
    return hits[-1].probability < 0.1 <= hits[0].probability


@WINDOWS
def test_probabilities_are_shown_where_they_are_known(visit_dated, dated, width):
    sure = next(item.text for item in dated.store.items("text") if _is_split(dated.search(item.text, k=12)))
    page = visit_dated(f"/?q={sure}", width)
    shown_ids(page)
    hits = dated.search(sure, k=12)
    shown = re.fullmatch(r"probability\s*(\d+)\s%", page.locator(".num").first.inner_text().strip())
    assert abs(int(shown[1]) - 100 * hits[0].probability) < 1
    assert page.locator(".score").first.get_attribute("title") == f"Score {hits[0].score:.3f}"
    assert page.locator("#about-scores").inner_text().startswith("Percentages are probabilities")
    page.get_by_label("probability").select_option("0.1")
    likely = ids(dated.search(sure, k=12, min_probability=0.1))
    assert 0 < len(likely) < 12
    assert shown_ids(page, len(likely)) == likely
    page.wait_for_url("**least=0.1*")
    check_width(page, width)
    for selector in (".tile-caption", ".hit-actions a", ".hit-actions button"):
        assert contrast(page, selector) >= 4.5, selector
    # A composed query was not measured.
    page.goto(f"{page.url}&plus=keys&least=0.1")
    page.locator(".num", has_text="score").first.wait_for()
    assert page.get_by_label("probability").is_hidden()
    assert page.locator("#about-scores").inner_text().startswith("Scores are cosines")
    page.get_by_role("link", name="Model").click()
    table = page.get_by_role("region", name="Probabilities")
    ece = dated.info()["calibration"]["search"]["ece"]
    assert f"{ece:.3f}" in table.locator("tbody tr").first.inner_text()
    check_width(page, width)


def test_the_model_tab_says_why_there_are_no_probabilities(visit):
    page = visit("/#model")
    page.locator("#model h2", has_text="Probabilities").wait_for()
    reason = page.evaluate("async () => (await (await fetch('v1/model')).json()).calibration.absent")
    assert page.locator("#model .note", has_text=reason).count() == 1


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_long_names_in_a_contact_sheet_do_not_overlap(chromium, size):
    items = [(None, f"IMG_{'x' * length}.jpg") for length in (5, 60, 200)]
    sheet = chromium.new_page(viewport=size)
    try:
        sheet.set_content(make_page("Near-identical images", "", [section("Groups", show_items(items))]))
        widths = sheet.locator(".strip li").evaluate_all(
            "all => all.map((item) => [item.scrollWidth, item.clientWidth])"
        )
    finally:
        sheet.close()
    assert len(widths) == 3
    assert all(needed <= there for needed, there in widths)


@WINDOWS
def test_a_result_is_confirmed_with_the_keyboard_and_taken_back(visit, serve, copied_folder, width):
    page = visit(f"/?q={TEXT}", serve(copied_folder, writable=True), viewport={**WIDE, "width": width})
    image = first_image(page)
    button = page.locator(".learn").first
    assert button.get_attribute("aria-pressed") == "false"
    button.focus()
    page.keyboard.press("Enter")
    page.locator(".learn[aria-pressed=true]").wait_for()
    (learned,) = Retriever.load(copied_folder).items(where="confirmed = true")
    assert (learned.text, learned.image) == (TEXT, image)
    assert "Learned" in page.locator("#announcement").inner_text()
    page.keyboard.press("Enter")
    page.locator(".learn[aria-pressed=true]").wait_for(state="detached")
    assert learned.id not in Retriever.load(copied_folder)
    check_width(page, width)


def test_a_server_that_cannot_write_offers_nothing_to_confirm(visit):
    page = visit(f"/?q={TEXT}")
    first_image(page)
    assert page.locator(".learn").count() == 0
