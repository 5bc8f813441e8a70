"""Retrievers on disk: what is read again, which encoders are needed, and what is refused."""

import json
import os
import tracemalloc
from functools import partial

import numpy as np
import pytest

from diptych import AWCCA, HKSE, Fusion, InputError, Retriever, _persistence
from diptych._model_folder import current_version
from diptych._persistence import FORMAT_VERSION, check_format
from diptych.cca import Moments
from diptych.encoders import PyramidDescriptor, sentence_encoder
from saved_files import edit_config, files_of
from tolerance import assert_same_hits, rounding


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("model", [AWCCA(params=(2.0, 3.0)), Fusion("plain", grid=3)], ids=str)
def test_the_estimator_of_a_loaded_retriever_is_made_when_it_is_asked_for(make, tmp_path, mmap, model):
    made = make(model=model)
    made.retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model", mmap=mmap)
    loaded.search(made.y[0])
    again = loaded.model
    assert type(again) is type(model)
    assert again is loaded.fitted.model  # one object, so that what is set on it has an effect
    assert again.score(made.x, made.y, made.pairing) == made.retriever.fitted.model.score(
        made.x, made.y, made.pairing
    )
    loaded.refit()


def test_a_model_that_was_selected_comes_back_with_its_path_and_card(views, same_answers, tmp_path):
    x, y, pairing = views(n=90)
    splits = ["train"] * 60 + ["val"] * 15 + ["test"] * 15
    retriever = Retriever.from_features(
        x, y, pairing, splits=splits, captions=[f"s{j}" for j in range(180)], model=AWCCA(grid=4)
    )
    retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    same_answers(loaded, retriever, x[:10], y[:20])
    assert loaded.info()["facts"]["metrics"] == retriever.info()["facts"]["metrics"]
    path, expected = (r.fitted.model.path_ for r in (loaded, retriever))
    np.testing.assert_array_equal(path.grid.x, expected.grid.x)
    assert path.choice == expected.choice
    assert "r@1" in (tmp_path / "model" / "README.md").read_text("utf-8")
    json.dumps(loaded.info(), allow_nan=False)


def test_correlations_of_unseen_pairs_stand_beside_those_of_the_model(views, tmp_path):
    from typer.testing import CliRunner

    from diptych.cli import app

    x, y, pairing = views(n=90)
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(grid=5))
    kinds = retriever.info()["correlations"]["search"]
    own = retriever.fitted.model.models_["search"]
    for name in ("correlations", "train_correlations", "validation_correlations"):
        np.testing.assert_allclose(kinds[name], getattr(own, name)[:5], atol=1e-6)
    retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    assert loaded.info()["correlations"]["search"] == kinds
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    said = CliRunner().invoke(app, ["info", str(tmp_path / "model")]).output
    for name, values in kinds.items():
        assert f"{values[0]:.3f}" in card, name
        assert f"{values[0]:.3f}" in said, name
    assert "on validation pairs" in card


def test_a_custom_filter_must_be_given_before_a_refit(views, tmp_path):
    x, y, pairing = views()
    model = AWCCA(filter=lambda squares, t: (1 - (1 - squares / squares[0]) ** t) / squares, params=(9, 9))
    retriever = Retriever.from_features(x, y, pairing, model=model)
    retriever.save(tmp_path / "model")
    retriever.refit()  # where the function is at hand it is used
    loaded = Retriever.load(tmp_path / "model")
    assert [hit.id for hit in loaded.search(y[0])] == [hit.id for hit in retriever.search(y[0])]
    with pytest.raises(InputError, match="give the filter again"):
        loaded.refit()
    loaded.fitted.model.set_params(filter=model.filter)
    loaded.refit()


def test_a_mapped_model_may_be_saved_over_itself(make, same_answers, tmp_path):
    made = make()
    made.retriever.save(tmp_path / "model")
    mapped = Retriever.load(tmp_path / "model", mmap=True)
    mapped.add(made.x[:1], made.y[:1], ids=["new"])
    mapped.save(tmp_path / "model")
    same_answers(Retriever.load(tmp_path / "model", mmap=True), mapped, made.x[:10], made.y[:20])
    mapped.save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_mapped_vectors_and_features_stay_on_disk(make, tmp_path, monkeypatch):
    made = make()
    made.retriever.save(tmp_path / "model")
    digested = []
    digest = _persistence.file_digest
    monkeypatch.setattr(_persistence, "file_digest", lambda path: digested.append(path.name) or digest(path))
    loaded = Retriever.load(tmp_path / "model", mmap=True).store.resident
    for index in (*loaded.indexes.values(), *loaded.kept.values()):
        assert all(isinstance(chunk.vectors, np.memmap) for chunk in index.chunks())
        assert all(not chunk.vectors.flags.writeable for chunk in index.chunks())
    assert "model.safetensors" in digested
    plain = Retriever.load(tmp_path / "model").store.resident
    assert not any(isinstance(c.vectors, np.memmap) for i in plain.indexes.values() for c in i.chunks())


def test_a_mapped_model_takes_little_memory(rng, tmp_path):
    x = rng.normal(size=(2000, 150)).astype(np.float32)
    Retriever.from_features(x, x[:, :9], model=AWCCA(params=(9.0, 9.0))).save(tmp_path / "model")
    memory = {}
    for mmap in (True, False):
        tracemalloc.start()
        loaded = Retriever.load(tmp_path / "model", mmap=mmap)
        assert len(loaded.search(x[0, :9], k=3)) == 3
        memory[mmap] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert memory[False] - memory[True] > x.nbytes


def test_only_a_refit_reads_the_moments(make, tmp_path, monkeypatch):
    made, read = make(), []
    made.retriever.save(tmp_path / "model")
    parse = Moments.parse.__func__
    monkeypatch.setattr(Moments, "parse", classmethod(lambda *args: read.append(args) or parse(*args)))
    digest = _persistence.file_digest
    monkeypatch.setattr(_persistence, "file_digest", lambda path: read.append(path) or digest(path))
    loaded = Retriever.load(tmp_path / "model")
    loaded.search(made.y[:3])
    loaded.add(made.x[:1], made.y[:1], ids=["new"])
    loaded.save(tmp_path / "model")
    assert not [each for each in read if "moments" in str(each)]
    loaded.refit()
    assert [each for each in read if "moments" in str(each)]


def test_a_refit_names_moments_that_are_missing(make, same_answers, tmp_path):
    made = make()
    made.retriever.save(tmp_path / "model")
    (files_of(tmp_path / "model") / "moments.safetensors").unlink()
    loaded = Retriever.load(tmp_path / "model")
    same_answers(loaded, made.retriever, made.x[:10], made.y[:20])
    with pytest.raises(InputError, match=r"moments\.safetensors is missing"):
        loaded.refit()


def test_a_refit_reads_moments_of_a_version_that_others_have_replaced(make, tmp_path):
    made = make()
    made.retriever.save(tmp_path / "model")
    mine, other = (Retriever.load(tmp_path / "model") for _ in range(2))
    learned = mine.fitted.learned
    other.add(made.x[:1], made.y[:1], ids=["theirs"])
    other.refit()
    assert len(list((tmp_path / "model" / "versions").iterdir())) == 1
    assert learned.moments().count == 120
    assert type(learned.model()) is AWCCA
    mine.refit()  # of the model that is current
    assert mine.info()["facts"]["refitted"] == {"pairs": 121, "before": 121}


def test_the_card_is_written_after_a_fit_or_refit_and_not_after_an_addition(make, tmp_path):
    made = make()
    made.retriever.save(tmp_path / "model")
    written = (tmp_path / "model" / "README.md").stat()
    in_version = (files_of(tmp_path / "model") / "README.md").stat().st_ino
    assert in_version != written.st_ino  # so that whoever edits the card does not edit the version
    made.retriever.add(made.x[:1], made.y[:1], ids=["new"])
    made.retriever.save(tmp_path / "model")
    shown = (tmp_path / "model" / "README.md").stat()
    assert (shown.st_ino, shown.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert (files_of(tmp_path / "model") / "README.md").stat().st_ino == in_version
    made.retriever.refit()
    assert "Refitted afterwards on 121 pairs" in (tmp_path / "model" / "README.md").read_text("utf-8")


class TestEncoders:
    def test_a_missing_encoder_is_named_in_one_sentence(self, make):
        made = make()
        for ask in (
            lambda r: r.search("a dog"),
            lambda r: r.annotate("a.jpg"),
            lambda r: r.similar(text="a"),
        ):
            with pytest.raises(InputError, match="encoder here: it was made from features. Give ") as caught:
                ask(made.retriever)
            assert "\n" not in str(caught.value)

    def test_known_encoders_are_named_when_missing_and_refused_when_others(self, make, tmp_path):
        class Sevens:
            def __init__(self, fingerprint):
                self.fingerprint, self.name = fingerprint, "sevens"

            def encode(self, sentences):
                return np.full((len(sentences), 7), 0.5) + len(sentences[0])

        right, wrong = Sevens("sevens:1"), Sevens("sevens:2")
        made = make(text_encoder=right)
        made.retriever.save(tmp_path / "model")
        with pytest.raises(InputError, match="its texts were encoded by sevens") as caught:
            Retriever.load(tmp_path / "model").search("a dog")
        assert "text_encoder=" in str(caught.value)
        # What is known of it survives being saved without it.
        Retriever.load(tmp_path / "model").save(tmp_path / "again")
        Retriever.load(tmp_path / "again").save(tmp_path / "again")
        for folder in ("model", "again"):
            with pytest.raises(InputError, match="'sevens:2', but the model was made with 'sevens:1'"):
                Retriever.load(tmp_path / folder, text_encoder=wrong)
            with pytest.raises(InputError, match="but the model was made with 'sevens:1'"):
                Retriever.load(tmp_path / folder, text_encoder=lambda sentences: np.ones((1, 7)))
            loaded = Retriever.load(tmp_path / folder, text_encoder=right)
            assert loaded.search("a dog", k=4) == made.retriever.search("a dog", k=4)
            assert loaded.info()["encoders"]["text"]["name"] == "sevens"

    def test_another_image_encoder_or_hkse_is_refused(self, fitted, drawn, tmp_path):
        fitted.save(tmp_path / "model")
        right = Retriever.load(tmp_path / "model", image_encoder="pyramid")
        assert right.info()["encoders"]["image"]["fingerprint"] == PyramidDescriptor().fingerprint

        class Other(PyramidDescriptor):
            fingerprint = "other"

        with pytest.raises(InputError, match="the image encoder given is 'other'"):
            Retriever.load(tmp_path / "model", image_encoder=Other())
        with pytest.raises(InputError, match="the text encoder given is 'hkse:"):
            Retriever.load(
                tmp_path / "model", text_encoder=HKSE(word="lin", sentence="lin").fit(drawn.captions)
            )

    def test_an_hkse_with_a_tokenizer_of_its_own_must_be_given(self, views, tmp_path):
        def tokenizer(sentence):
            return sentence.split("-")

        sentences = [f"{a}-{b}" for a in ("red", "green", "blue") for b in ("dog", "cat", "bird", "fish")] * 5
        hkse = HKSE(word="lin", sentence="lin", tokenizer=tokenizer).fit(sentences)
        y = hkse.transform(sentences)
        x = np.hstack([y, y**2]) + 0.1 * np.random.default_rng(0).normal(size=(60, 2 * y.shape[1]))
        retriever = Retriever.from_features(
            x, y, captions=sentences, text_encoder=hkse, model=AWCCA(params=(1.0, 1.0))
        )
        retriever.save(tmp_path / "model")
        with pytest.raises(InputError, match="tokenizer of its own"):
            Retriever.load(tmp_path / "model")
        encoder = HKSE.load(tmp_path / "model", tokenizer=tokenizer)
        loaded = Retriever.load(tmp_path / "model", text_encoder=encoder)
        hits, expected = loaded.search("red-dog", k=5), retriever.search("red-dog", k=5)
        assert_same_hits(hits, expected, rounding(np.float32, 4000))

    def test_what_is_no_encoder_is_refused(self):
        with pytest.raises(InputError, match="int is not an image encoder"):
            Retriever(5)
        with pytest.raises(InputError, match="int is not a sentence encoder"):
            Retriever("pyramid", 5)

    def test_a_text_encoder_object_is_used_as_it_is(self, fitted):
        encoder = sentence_encoder(fitted.encoders.hkse)
        assert Retriever("pyramid", encoder).encoders.text is encoder


def test_names_of_any_kind_come_back(make, tmp_path):
    made, names = make(), ["猫", "new\nline\u2028", "\u0000", '"quoted"', "../../up", "é" * 999]
    made.retriever.add(
        made.x[:6],
        made.y[:6],
        ids=names,
        texts=[f"about {name}" for name in names],
        paths=[f"/{name}" for name in names],
        metadata={name: {name: name} for name in names},
    )
    made.retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    for row, name in enumerate(names):
        assert loaded.search(made.y[0], where=[name]) == made.retriever.search(made.y[0], where=[name])
        assert loaded.annotate(made.x[0], where=[f"{name}#{row}"])[0].text == f"about {name}"
        assert loaded.remove(name) == 2


def test_captions_that_are_no_strings_are_stored_as_such(make, tmp_path):
    made = make(captions=[None, *range(119)], paths=[None, *(f"{i}.png" for i in range(59))])
    made.retriever.add(captions=made.y[:2], texts=[5, np.str_("six")], caption_ids=["five", "six"])
    made.retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    texts = {hit.id: hit.text for hit in loaded.annotate(made.x[0], k=200)}
    assert (texts["0#0"], texts["0#1"], texts["five"], texts["six"]) == (None, "0", "5", "six")
    assert {hit.path for hit in loaded.search(made.y[0], where=["0", "1"])} == {
        None,
        os.path.abspath("0.png"),
    }


def test_what_could_not_be_read_again_is_not_written(make, same_answers, tmp_path):
    made, endless = make(), {"texts": ["long " * 300_000], "caption_ids": ["endless"]}
    made.retriever.add(captions=made.y[:1], **endless)
    with pytest.raises(InputError, match="the item 'endless' takes 15"):
        made.retriever.save(tmp_path / "model")
    with pytest.raises(InputError, match="nothing was saved there yet"):
        Retriever.load(tmp_path / "model")
    made.retriever.remove("endless")
    made.retriever.save(tmp_path / "model")
    before = Retriever.load(tmp_path / "model").search(made.y, k=99)
    with pytest.raises(InputError, match="the item 'endless' takes 15"):
        made.retriever.add(captions=made.y[:1], **endless)
    assert Retriever.load(tmp_path / "model").search(made.y, k=99) == before


class TestRefused:
    @pytest.fixture
    def folder(self, make, tmp_path):
        make().retriever.save(tmp_path / "model")
        return tmp_path / "model"

    def test_a_newer_format_is_refused_with_the_command_that_helps(self, folder):
        edit_config(folder, version=FORMAT_VERSION + 1)
        with pytest.raises(InputError, match="install a newer version of diptych"):
            Retriever.load(folder)

    @pytest.mark.parametrize("version", ["x", "²", "", None, 0, -1, True, 1.5, [], {}, "1e3"])
    def test_a_version_that_is_none_is_refused(self, folder, version):
        edit_config(folder, version=version)
        with pytest.raises(InputError, match="no valid format version"):
            Retriever.load(folder)
        with pytest.raises(InputError, match="no valid format version"):
            check_format({"format": "diptych-retriever", "version": version}, "retriever", folder)

    def test_a_model_without_an_index_is_refused(self, folder, make, tmp_path):
        made = make()
        AWCCA(params=(1.0, 1.0)).fit(made.x, made.y, made.pairing).save(tmp_path / "plain")
        with pytest.raises(
            InputError, match="holds a model without items. Load it with AWCCA.load"
        ) as caught:
            Retriever.load(tmp_path / "plain")
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match="is not a diptych retriever"):
            made.retriever.save(tmp_path / "plain")
        with pytest.raises(InputError, match="is not a diptych awcca"):
            AWCCA(params=(1.0, 1.0)).fit(made.x, made.y, made.pairing).save(folder)
        AWCCA.load(tmp_path / "plain")

    def test_what_is_no_folder_or_another_one_is_refused(self, folder, make, tmp_path):
        with pytest.raises(InputError, match="is not a folder"):
            Retriever.load(tmp_path / "nothing")
        with pytest.raises(InputError, match="is not a folder"):
            Retriever.load(folder / "items.sqlite")
        (tmp_path / "letters").mkdir()
        (tmp_path / "letters" / "dear.txt").write_text("keep me")
        with pytest.raises(InputError, match="is not a model folder: it has neither"):
            Retriever.load(tmp_path / "letters")
        with pytest.raises(InputError, match="is not a diptych retriever"):
            make().retriever.save(tmp_path / "letters")
        assert (tmp_path / "letters" / "dear.txt").read_text() == "keep me"

    def test_a_folder_of_an_earlier_version_is_refused(self, folder, make):
        version = current_version(folder)
        for path in folder.glob("items.sqlite*"):
            path.unlink()
        record = {"format": "diptych-retriever", "version": version.id, "sha256": version.digest}
        (folder / "current.json").write_text(json.dumps(record))
        with pytest.raises(InputError, match="was saved by an earlier version of diptych.*fit again"):
            Retriever.load(folder)
        with pytest.raises(InputError, match="is not a diptych retriever"):
            make().retriever.save(folder)

    @pytest.mark.parametrize("mmap", [False, True])
    @pytest.mark.parametrize("name", ["model.safetensors", "moments.safetensors"])
    def test_a_changed_byte_is_noticed_wherever_checksums_are_compared(self, folder, name, mmap):
        content = bytearray((files_of(folder) / name).read_bytes())
        content[-2] ^= 1
        (files_of(folder) / name).write_bytes(content)
        refits = name == "moments.safetensors"  # which nothing else reads
        action = (
            Retriever.load(folder, mmap=mmap).refit if refits else partial(Retriever.load, folder, mmap=mmap)
        )
        with pytest.raises(InputError, match="its checksum differs"):
            action()

    def test_files_of_another_model_are_refused(self, folder, make, tmp_path):
        make(seed=2, shape={"m_x": 9}).retriever.save(tmp_path / "other")
        own, another = files_of(folder), files_of(tmp_path / "other")
        (own / "moments.safetensors").write_bytes((another / "moments.safetensors").read_bytes())
        files = json.loads((own / "config.json").read_text("utf-8"))["files"]
        other = json.loads((another / "config.json").read_text("utf-8"))["files"]
        edit_config(folder, files={**files, "moments.safetensors": other["moments.safetensors"]})
        with pytest.raises(InputError, match="belong to a model of other features"):
            Retriever.load(folder).refit()

    def test_an_unfitted_retriever_has_nothing_to_save(self, tmp_path):
        with pytest.raises(InputError, match="is not fitted"):
            Retriever(None, None).save(tmp_path / "model")
        assert list(tmp_path.iterdir()) == []
