"""Models and clients for the tests: applications in this process, and real servers."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from diptych import HKSE, Retriever
from diptych.data import split_by_image
from diptych.fusion import Fusion, Part
from diptych.scenes import make_scenes
from diptych.service._files import Images
from other_views import fit_molecules, make_tones
from pages import WIDE
from servers import TOKEN, Server, in_process, serving

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PATIENCE = 60_000


@pytest.fixture(autouse=True)
def decoders_on_demand(monkeypatch):
    """Start no decoder before there is an image: most servers of the tests never see one."""
    monkeypatch.setattr(Images, "start", lambda images: None)


@pytest.fixture(scope="session")
def scenes_folder(tmp_path_factory):
    """A folder with images and a saved model."""
    place = tmp_path_factory.mktemp("scenes")
    pairs = make_scenes(160, size=96).write(place / "scenes")
    encoder = HKSE(word_features=120, sentence_features=120)
    Retriever("pyramid", encoder).fit(pairs).save(place / "model")
    return place


@pytest.fixture(scope="session")
def folder(scenes_folder):
    """The saved model; tests that change it use ``copied_folder``."""
    return scenes_folder / "model"


@pytest.fixture
def copied_folder(folder, tmp_path):
    """A copy of the model that may be changed."""
    return shutil.copytree(folder, tmp_path / "model")


@pytest.fixture(scope="session")
def fused_folder(tmp_path_factory):
    """A saved fusion of two feature blocks on each side."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(240, 5))

    def block(width):
        return (hidden @ rng.normal(size=(5, width)) + rng.normal(size=(240, width))).astype(np.float32)

    views = {"photos": block(9), "sketches": block(7)}, {"words": block(8), "tones": block(6)}
    place = tmp_path_factory.mktemp("fused") / "model"
    Retriever.from_features(*views, model=Fusion(grid=3)).save(place)
    return place


@pytest.fixture(scope="session")
def fused_scenes(retriever, tmp_path_factory):
    """A saved fusion of the scenes; each of two parts knows every second word, so that both are needed."""
    images, captions = (list(retriever.store.items(view)) for view in ("image", "text"))
    words = sorted({word for item in captions for word in item.text.lower().split()})
    counts = np.array(
        [[item.text.lower().split().count(word) for word in words] for item in captions], np.float32
    )
    rows = {item.id: row for row, item in enumerate(images)}
    place = tmp_path_factory.mktemp("fused-scenes") / "model"
    Retriever.from_features(
        {"pyramid": retriever.store.features("image", list(rows))},
        {"words": counts[:, ::2], "others": counts[:, 1::2]},
        [rows[item.image] for item in captions],
        ids=list(rows),
        caption_ids=[item.id for item in captions],
        captions=[item.text for item in captions],
        paths=[item.path for item in images],
        model=Fusion(grid=5, parts=[Part(("pyramid",), ("words",)), Part(("pyramid",), ("others",))]),
    ).save(place)
    return place


@pytest.fixture(scope="session")
def retriever(folder):
    return Retriever.load(folder)


@pytest.fixture(scope="session")
def easy(retriever, path_of):
    """A caption that is the first hit of its image, and the other way round."""
    for item in retriever.store.items():
        if (
            item.view == "text"
            and retriever.search(item.text, k=1)[0].id == item.image
            and retriever.annotate(path_of(item.image), k=1)[0].id == item.id
        ):
            return item
    raise AssertionError("no caption is the first hit of its image")


@pytest.fixture(scope="session")
def path_of(retriever):
    """Return the path of an image by its id."""
    return lambda item_id: retriever.item(item_id).path


@pytest.fixture
def make_client(folder):
    """Make clients: ``make_client(folder, writable=True, k=5)``."""
    with contextlib.ExitStack() as stack:

        def make(place=folder, **options):
            return stack.enter_context(in_process(place, **options))

        make.stop = stack.close
        yield make


@pytest.fixture(scope="module")
def client(folder):
    """One client for a module of tests that change nothing."""
    with in_process(folder) as client:
        yield client


@pytest.fixture
def start():
    """Start servers: ``start(folder, *flags)``."""
    servers = []

    def begin(*args, **kwargs):
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield begin
    for server in servers:
        if server.process.poll() is None:
            server.kill()
        for pipe in (server.process.stdout, server.process.stderr):
            pipe.close()


@pytest.fixture(scope="module")
def live(folder):
    """One server for a module of tests that change nothing."""
    server = Server(folder, "--quiet")
    yield server.url
    server.kill()


@pytest.fixture
def serve():
    """Serve retrievers and folders in threads: ``serve(retriever)`` returns the address."""
    with contextlib.ExitStack() as stack:
        yield lambda place, **options: stack.enter_context(serving(place, **options))


@pytest.fixture(scope="module")
def live_guarded(folder):
    """One server with a token, and with the usual limit of 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        server = Server(folder, "--quiet", DIPTYCH_TOKEN=TOKEN)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def live_writable(folder, tmp_path_factory):
    """One server for a module of tests that change a copy of the model."""
    place = shutil.copytree(folder, tmp_path_factory.mktemp("writable") / "model")
    with serving(place, writable=True) as url:
        yield url


@pytest.fixture(scope="module")
def live_of_molecules(tmp_path_factory):
    """One writable server of a model whose first view is texts."""
    retriever, place = fit_molecules(), tmp_path_factory.mktemp("of-molecules") / "model"
    retriever.save(place)
    with serving(place, writable=True, encoder=retriever.encoders.image) as url:
        yield url


@pytest.fixture(scope="module")
def live_of_features(of_features, tmp_path_factory):
    """One writable server of a model of features."""
    place = shutil.copytree(of_features[0], tmp_path_factory.mktemp("writable") / "model")
    with serving(place, writable=True) as url:
        yield url


@pytest.fixture(scope="session")
def of_features(tmp_path_factory):
    """A saved model of features alone, and the features."""
    rng = np.random.default_rng(3)
    hidden = rng.normal(size=(120, 4))
    x = (hidden @ rng.normal(size=(4, 12)) + 0.1 * rng.normal(size=(120, 12))).astype(np.float32)
    y = (hidden @ rng.normal(size=(4, 9)) + 0.1 * rng.normal(size=(120, 9))).astype(np.float32)
    place = tmp_path_factory.mktemp("features") / "model"
    Retriever.from_features(x, y).save(place)
    return place, x, y


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    """Paths of WAV files, and their captions."""
    return make_tones(tmp_path_factory.mktemp("tones"))


@pytest.fixture(scope="module")
def chromium():
    """The browser; without it these tests are skipped."""
    if not CHROMIUM.exists():
        message = f"{CHROMIUM} does not exist"
        if os.environ.get("DIPTYCH_REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    """Where screenshots go: a folder of their own, or DIPTYCH_SCREENSHOTS."""
    place = Path(os.environ.get("DIPTYCH_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
def visit(chromium, live, shots, request):
    """Open an address: ``visit("/?q=…", **context)``. Errors of the page's own fail the test."""
    contexts, errors = [], []

    def go(path="/", base=live, **options):
        context = chromium.new_context(**{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Content Security" in line.text else None)
        page.on(
            "request",
            lambda sent: (
                errors.append(sent.url) if not sent.url.startswith((base, "blob:", "data:")) else None
            ),
        )
        page.goto(base + path)
        return page

    yield go
    for number, context in enumerate(contexts):
        name = re.sub(r"\W+", "-", request.node.name)
        context.pages[0].screenshot(path=shots / f"{name}-{number}.png")
        context.close()
    assert errors == []


@pytest.fixture(scope="session")
def dated(tmp_path_factory):
    """A retriever of items with years and dates, and with probabilities."""
    place = tmp_path_factory.mktemp("dated")
    pairs = split_by_image(make_scenes(320, size=64).write(place), validation=110, test=30)
    metadata = {
        image: {"year": 1990 + i % 30, "taken": datetime.date(2020, 1, 1) + datetime.timedelta(i)}
        for i, image in enumerate(pairs.image_ids)
    }
    encoder = HKSE(word_features=120, sentence_features=120)
    return Retriever("pyramid", encoder).fit(pairs, metadata=metadata)


@pytest.fixture(scope="session")
def dated_folder(dated, tmp_path_factory):
    """That retriever as a saved model."""
    place = tmp_path_factory.mktemp("dated") / "model"
    dated.save(place)
    return place


@pytest.fixture
def visit_dated(visit, serve, dated):
    base = serve(dated)
    return lambda path, width: visit(path, base=base, viewport={"width": width, "height": 844})
