"""Models published in repositories: a real client against a Hub on this machine, in processes of its own."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from diptych import AWCCA, HKSE, InputError, Retriever
from diptych._database import FILE
from diptych._persistence import CONFIG, write_config
from diptych.data import read_pairs
from diptych.retrieval._folder import KIND, AddressConfig
from diptych.retrieval.stores._files import write_folder
from diptych.scenes import make_scenes
from example_files import write_network
from hub_server import HubServer, Repository
from saved_files import execute, seal_config
from tolerance import assert_same_hits

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
yaml = pytest.importorskip("yaml")

LIMIT = 120
TOLERANCE = 1e-5
QUERY = "a red star"
NAMES = ("config.json", "model.safetensors")
ESTIMATOR = ("estimator.json", "estimator.safetensors")


@pytest.fixture(scope="module")
def hub():
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of drawn scenes with a network, all in a folder that nobody should learn of."""
    folder = tmp_path_factory.mktemp("hidden-place")
    make_scenes(60, size=64).write(folder / "scenes")
    write_network(folder / "colours.onnx")
    text = HKSE(word_features=60, sentence_features=60)
    retriever = Retriever(folder / "colours.onnx", text, AWCCA(grid=4)).fit(read_pairs(folder / "scenes"))
    retriever.save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def published(hub, place, tmp_path_factory):
    """The repository that ``diptych push`` has filled with the model."""
    client = make_client(hub, tmp_path_factory.mktemp("home"))
    pushed = json.loads(client("push", place / "model", "ada/scenes", "--license", "cc-by-4.0", "--json"))
    repo = hub.repositories["models/ada/scenes"]
    assert pushed["commit"] == f"{hub.address}/ada/scenes/commit/{repo.branches['main']}"
    return repo


@pytest.fixture
def client(hub, tmp_path):
    return make_client(hub, tmp_path / "home")


def make_client(hub, home):
    """Runs Python code or a command of diptych with the Hub of the tests and a cache of its own."""

    def start(*arguments, token="hf_ada", **environment):
        paths = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        own = {**os.environ, "HF_HUB_OFFLINE": "0", **paths, "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
        if token is not None:
            own["HF_TOKEN"] = token
        pipe = subprocess.PIPE
        return subprocess.Popen(list(map(str, arguments)), env=own, stdout=pipe, stderr=pipe, text=True)

    def run(*arguments, code=None, **settings):
        """Return the process, which must succeed; of ``code``, what it prints as JSON."""
        program = [sys.executable, *(["-m", "diptych"] if code is None else ["-c", textwrap.dedent(code)])]
        with start(*program, *arguments, **settings) as process:
            try:
                out, errors = process.communicate(timeout=LIMIT)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0, errors
        return out if code is None else json.loads(out)

    run.start = start
    return run


def list_files(folder):
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_a_published_model_answers_as_before(published, place, client, tmp_path):
    assert not published.private
    files = published.files()
    (version,) = {name.split("/")[1] for name in files if name.startswith("versions/")}
    names = (*NAMES, *ESTIMATOR, *(f"text-encoder/{name}" for name in NAMES))
    expected = {f"versions/{version}/{name}" for name in names}
    expected |= {f"rows/{version}.{task}" for task in ("search", "annotate")}
    assert {name for name in files if name.startswith(("versions/", "rows/"))} == expected
    assert set(files) - expected == {".gitattributes", "README.md", "regularization.png", FILE}
    for name, content in files.items():
        assert b"hidden-place" not in content, name
        assert str(place.parent).encode() not in content, name

    front, _, card = files["README.md"].decode().removeprefix("---\n").partition("\n---\n")
    data = yaml.safe_load(front)
    assert (data["library_name"], data["license"]) == ("diptych", "cc-by-4.0")
    kinds = {result["task"]["type"] for result in data["model-index"][0]["results"]}
    assert kinds == {"text-to-image-retrieval", "image-to-text-retrieval"}
    assert 'Retriever.from_pretrained("ada/scenes")' in card
    assert "diptych pull ada/scenes --out scenes" in card

    out = tmp_path / "pulled"
    client("pull", "ada/scenes", "--out", out, "--images", place / "scenes", token=None)
    before, after = Retriever.load(place / "model"), Retriever.load(out, place / "colours.onnx")
    assert_same_hits(after.search(QUERY), before.search(QUERY), TOLERANCE)
    image = place / "scenes" / before.search(QUERY)[0].id
    assert_same_hits(after.annotate(image), before.annotate(image), TOLERANCE)
    assert [hit.path for hit in after.search(QUERY)] == [hit.path for hit in before.search(QUERY)]


@pytest.mark.slow
def test_a_downloaded_model_is_a_folder_without_links(hub, published, place, client, tmp_path):
    result = client(
        place,
        tmp_path,
        code="""
        import json, os, sys
        from pathlib import Path
        from huggingface_hub import snapshot_download
        from diptych import InputError, Retriever

        place, out = map(Path, sys.argv[1:])
        retriever = Retriever.from_pretrained("ada/scenes", mmap=True)
        folder = Path(os.environ["HF_HOME"], "diptych", "ada--scenes@main")
        result = {"hits": [hit.id for hit in retriever.search("a red star")], "folder": str(folder)}
        result["paths"] = [hit.path for hit in retriever.search("a red star")]

        def refuse(name, action):
            try:
                action()
            except InputError as error:
                result[name] = str(error)

        refuse("annotate", lambda: retriever.annotate(str(place / "scenes" / result["hits"][0])))
        known = Retriever.from_pretrained("ada/scenes", image_encoder=place / "colours.onnx")
        result["annotated"] = len(known.annotate(str(place / "scenes" / result["hits"][0])))
        added = known.add(str(place / "scenes" / result["hits"][0]), ids=["new"])
        known.save(out / "copy")
        snapshot_download("ada/scenes", local_dir=out / "local")
        refuse("links", lambda: Retriever.load(snapshot_download("ada/scenes")))
        result["local"] = [hit.id for hit in Retriever.from_pretrained(out / "local").search("a red star")]
        result["copy"] = Retriever.load(out / "copy").item("new") is not None
        print(json.dumps(result))
        """,
    )
    cache = Path(result["folder"])
    assert cache.is_relative_to(tmp_path / "home")
    assert not [path for path in cache.rglob("*") if path.is_symlink()]
    expected = Retriever.load(place / "model")
    assert result["local"] == result["hits"]
    assert result["hits"] == [hit.id for hit in expected.search(QUERY)]
    assert set(result["paths"]) == {None}
    assert "its images were encoded by colours.onnx" in result["annotate"]
    assert result["annotated"] == 5
    assert f"{FILE} is a link" in result["links"]
    assert result["copy"]
    files = [path for path in cache.rglob("*") if path.is_file()]
    names = {path.name for path in files if ".cache" not in path.relative_to(cache).parts}
    names -= {*NAMES, *ESTIMATOR, FILE, "README.md", "regularization.png"}
    assert {name.partition(".")[2] for name in names} == {"search", "annotate"}

    # Without a network, from the cache.
    seen, before = len(hub.requests), list_files(cache)
    found = client(
        code="""
        import json
        from diptych import Retriever
        retriever = Retriever.from_pretrained("ada/scenes")
        print(json.dumps([hit.id for hit in retriever.search("a red star")]))
        """,
        HF_HUB_OFFLINE="1",
    )
    assert found == result["hits"]
    assert len(hub.requests) == seen
    assert list_files(cache) == before


@pytest.mark.slow
def test_pushing_again_replaces_the_model_and_features_allow_a_refit(hub, place, client):
    result = client(
        place / "model",
        code="""
        import json, sys
        from diptych import InputError, Retriever

        retriever = Retriever.load(sys.argv[1])
        retriever.push_to_hub("ada/again", private=True)
        retriever.remove(retriever.search("a red star")[0].id)
        retriever.push_to_hub("ada/again")
        retriever.push_to_hub("ada/again", branch="refit", keep_features=True, commit_message="with features")
        plain = Retriever.from_pretrained("ada/again")
        try:
            plain.refit()
        except InputError as error:
            refused = str(error)
        refitted = Retriever.from_pretrained("ada/again", revision="refit").refit()
        print(json.dumps([plain.info()["items"], refitted.info()["items"], refused]))
        """,
    )
    assert result[0] == result[1] == {"image": 59, "text": 295}
    repo = hub.repositories["models/ada/again"]
    assert repo.private
    for branch in ("main", "refit"):
        versions = {name.split("/")[1] for name in repo.files(branch) if name.startswith("versions/")}
        assert len(versions) == 1
    names = {name.rpartition("/")[2] for name in repo.files("refit")}
    wanted = {
        "moments.safetensors",
        *(f"{version}.{view}" for version in versions for view in ("image", "text")),
    }
    assert wanted <= names
    assert not wanted & {Path(n).name for n in repo.files()}
    assert len([name for name in repo.files() if name.startswith("rows/")]) == 2


@pytest.mark.slow
def test_only_the_files_of_a_model_are_downloaded(hub, published, client, tmp_path):
    (version,) = {name.split("/")[1] for name in published.files() if name.startswith("versions/")}
    names = [
        "model.py",
        "model.pkl",
        "a.bin",
        "versions/000009-00000000/model.safetensors",
        "rows/000009-00000000.search",
    ]
    names += [f"versions/{version}/{name}" for name in ("search.hnsw", "other.json", "other.safetensors")]
    evil = dict.fromkeys(names, b"evil")
    # The config names some of them.
    path = tmp_path / "evil"
    for name, content in (published.files() | evil).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    config = json.loads((path / "versions" / version / CONFIG).read_text())
    entry = {"bytes": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}
    config["files"] |= dict.fromkeys(("search.hnsw", "other.json", "../../model.py", "*"), entry)
    (path / "versions" / version / CONFIG).write_text(json.dumps(config))
    seal_config(path)
    changed = {name: (path / name).read_bytes() for name in (FILE, f"versions/{version}/{CONFIG}")}
    hub.repositories["models/ada/extra"] = published.copy(**evil, **changed)
    hub.requests.clear()
    client("pull", "ada/extra", "--out", tmp_path / "pulled", "-q")
    assert Retriever.load(tmp_path / "pulled").search(QUERY)
    assert not [name for name in evil if any(request.endswith(name) for request in hub.requests)]
    client("pull", "ada/extra", "--out", tmp_path / "again", "-q", "--max-gigabytes", 0.1)


@pytest.mark.slow
def test_a_model_that_is_too_large_is_not_downloaded(hub, published, client):
    hub.requests.clear()
    message = client(
        code="""
        import json
        from diptych import InputError, Retriever
        try:
            Retriever.from_pretrained("ada/scenes", max_gigabytes=1e-5)
        except InputError as error:
            print(json.dumps(str(error)))
        """
    )
    assert "more than max_gigabytes=1e-05; raise that to download it" in message
    assert not [request for request in hub.requests if request.endswith(".search")]


@pytest.mark.slow
def test_errors_are_one_sentence(hub, published, place, client, tmp_path):
    damaged = next(name for name in published.files() if name.endswith("model.safetensors"))
    changes = {damaged: published.files()[damaged][:-1] + b"x"}
    for name, repo in {
        "private": published.copy(),
        "broken": published.copy(),
        "damaged": published.copy(**changes),
        "other": Repository(private=False),
    }.items():
        hub.repositories[f"models/ada/{name}"] = repo
    hub.repositories["models/ada/private"].private = True
    hub.repositories["models/ada/other"].commit("main", {"config.json": b"{}"})
    hub.broken = "ada/broken"
    code = """
        import json, os, sys
        from typer.testing import CliRunner
        from diptych.cli import app

        results = []
        for token, *arguments in json.loads(sys.argv[1]):
            os.environ["HF_TOKEN"] = token
            result = CliRunner().invoke(app, arguments)
            results.append([result.exit_code, result.stderr])
        print(json.dumps(results))
        """
    model, out = str(place / "model"), str(tmp_path / "out")
    cases = [
        (["wrong", "push", model, "ada/new"], "needs a valid login to the Hub, or does not exist; log in"),
        (["", "push", model, "ada/new"], "needs a valid login to the Hub"),
        (["hf_bob", "push", model, "ada/new"], "does not allow this for ada/new; use a token that may write"),
        (["hf_bob", "push", model, "ada/private"], "does not allow this for ada/private"),
        (["hf_ada", "push", model, "no name"], "'no name' is not the name of a repository; give user/name"),
        (["hf_ada", "push", model, "ada/-x-"], "'ada/-x-' is not the name of a repository"),
        (["hf_ada", "push", model, "ada/new", "--license", "mine"], '"license" must be one of'),
        (["hf_ada", "pull", "ada/none", "--out", out], "there is no ada/none on the Hub"),
        (["hf_bob", "pull", "ada/private", "--out", out], "no ada/private on the Hub, or you may not see it"),
        (["wrong", "pull", "ada/private", "--out", out], "needs a valid login"),
        (["hf_ada", "pull", "ada/private", "--revision", "v9", "--out", out], "has no such revision"),
        (["hf_ada", "pull", "ada/private", "--out", str(place / "scenes")], "is not a diptych retriever"),
        (["hf_ada", "pull", "ada/private", "--images", "none", "--out", out], "none is not a folder"),
        (["hf_ada", "pull", "ada/damaged", "--out", out], "model.safetensors is not as it was written"),
        (["hf_ada", "pull", "ada/other", "--out", out], "ada/other is not a model of diptych"),
        (["hf_ada", "pull", "ada/broken", "--out", out], "the Hub answered 500 for ada/broken"),
        (["hf_ada", "push", model, "ada/broken"], "the Hub answered 500 for ada/broken"),
    ]
    results = client(json.dumps([arguments for arguments, _ in cases]), code=code)
    for (arguments, message), (status, errors) in zip(cases, results, strict=True):
        assert status == 2, (arguments, errors)
        last = errors.splitlines()[-1]
        assert last.startswith("error: "), (arguments, errors)
        assert message in last
        assert "Traceback" not in errors
        assert "hf_" not in last
    hub.broken = ""
    attempts = [["hf_ada", "push", model, "ada/new"], ["hf_ada", "pull", "ada/private", "--out", out]]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        for environment in ({"HF_ENDPOINT": nobody}, {"HF_HUB_OFFLINE": "1"}):
            for status, errors in client(json.dumps(attempts), code=code, **environment):
                assert status == 2
                assert "the Hub cannot be reached" in errors.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_leaves_nothing_behind(hub, published, client, tmp_path, how):
    out = tmp_path / "pulled"
    hub.stalled.clear()
    hub.stalls = ".search"
    command = [sys.executable, "-m", "diptych", "pull", "ada/scenes", "--out", out]
    with client.start(*command, HF_HUB_DOWNLOAD_TIMEOUT="2") as process:
        try:
            assert hub.stalled.wait(LIMIT)
            process.send_signal(how)
            _, errors = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert not out.exists()
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines()[-1] == "interrupted; nothing was written"
        client("pull", "ada/scenes", "--out", out, "-q")
        assert len(Retriever.load(out).search(QUERY)) == 10


def test_no_path_of_a_published_model_is_opened(place, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(place / "model", folder)
    text = (next((folder / "versions").iterdir()) / CONFIG).read_text()
    assert str(place / "colours.onnx") in text  # written by somebody else, about files that exist here too
    ((contents,),) = execute(folder, "SELECT contents FROM current")
    assert str(place / "scenes") in contents
    trusted, published = Retriever.load(folder), Retriever.from_pretrained(folder)
    image = trusted.search(QUERY)[0].path
    assert trusted.annotate(image)
    assert [hit.id for hit in published.search(QUERY)] == [hit.id for hit in trusted.search(QUERY)]
    assert {item.path for item in published.store.items()} == {None}
    with pytest.raises(InputError, match="no image encoder here: its images were encoded by colours.onnx"):
        published.annotate(image)
    found = Retriever.from_pretrained(folder, images=place / "scenes")
    assert [hit.path for hit in found.search(QUERY)] == [hit.path for hit in trusted.search(QUERY)]


def test_ids_that_lead_out_of_the_images_are_not_files(place, tmp_path, make):
    names = ["../secret.png", str(tmp_path / "secret.png"), "inside.png"]
    (tmp_path / "images").mkdir()
    for name in ("secret.png", "images/inside.png"):
        (tmp_path / name).write_bytes(b"")
    ids = names + [str(row) for row in range(57)]
    make(ids=ids).retriever.save(tmp_path / "model")
    found = Retriever.from_pretrained(tmp_path / "model", images=tmp_path / "images")
    assert [found.item(name).path for name in names] == [None, None, str(tmp_path / "images" / "inside.png")]


def test_no_database_is_opened_for_a_published_model(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        config = AddressConfig(f"postgresql://eve@127.0.0.1:{port}/trap")
        write_folder(tmp_path / "model", None, lambda path: write_config(path, KIND, config))
        with pytest.raises(InputError, match="names a database, which is not opened for a published model"):
            Retriever.from_pretrained(tmp_path / "model")
        with pytest.raises(TimeoutError):
            listener.accept()


def test_what_is_not_published_is_refused_before_anything_is_sent(hub, fresh, make):
    seen = len(hub.requests)
    ids = ["/a/1.jpg", "/b/1.jpg", *map(str, range(58))]
    for retriever, options, message in (
        (make(index=fresh()).retriever, {}, "are in a database and are not published"),
        (make(ids=ids).retriever, {}, "the id '1.jpg' is given twice"),
        (make(keep_features=False).retriever, {"keep_features": True}, "does not have its features"),
        (Retriever(), {}, "this retriever is not fitted"),
    ):
        with pytest.raises(InputError, match=message):
            retriever.push_to_hub("ada/never", **options)
    assert len(hub.requests) == seen


def test_options_of_a_folder(place):
    with pytest.raises(InputError, match="is a folder, so revision and token have no effect"):
        Retriever.from_pretrained(place / "model", revision="main")


def test_the_package_is_named_where_it_is_missing(monkeypatch, make):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for action in (
        lambda: Retriever.from_pretrained("ada/scenes"),
        lambda: make().retriever.push_to_hub("ada/scenes"),
    ):
        with pytest.raises(InputError, match="needs huggingface-hub; install with: pip install"):
            action()
