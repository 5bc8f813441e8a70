"""Models of fastembed as encoders of either view: ONNX networks with their own preprocessing, without torch.

fastembed is imported only when one of its models is used. A model is a name that fastembed lists, or a folder
with the files that fastembed reads. In a folder, the files say what the network needs, but not how its output
becomes features. That is known

1. if the folder is named as one of fastembed's models, or as its repository at Hugging Face (also in a cache:
   ``models--ORG--NAME/snapshots/REVISION``), and has its network;
2. else for images, if the network is ``model.onnx``: its first output, one row per image, at unit length;
3. else for texts, in a folder of sentence-transformers whose network is ``model.onnx`` or
   ``onnx/model.onnx``: ``modules.json`` names the pooling.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diptych._checks import InputError, check_view, missing_package_error
from diptych._persistence import file_digest, parse_json
from diptych._threads import set_session_options
from diptych.encoders._image import View, make_example
from diptych.encoders._networks import list_network_files, reopen
from diptych.encoders._words import iterate_texts

if TYPE_CHECKING:
    from PIL import Image

Description: TypeAlias = Mapping[str, Any]
"""A model as fastembed lists it."""

FASTEMBED = "fastembed:"

_BATCH = {"image": 16, "text": 64}
_SETTINGS = {
    "image": ("preprocessor_config.json",),
    "text": ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
}
"""The files that fastembed reads beside the network."""

_PLAIN = "Qdrant/resnet50-onnx"
"""fastembed runs its network, model.onnx, as the second rule of this module says."""

_POOLING = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST_TOKEN"}
"""The names of sentence-transformers and of fastembed."""

_REGISTERED = "diptych/"
"""With what the names begin that are registered for folders."""

_registering = Lock()


def list_fastembed_models(view: View, source: str = "") -> list[Description]:
    """Return the models that fastembed has for images or for texts; ``source`` is for error messages."""
    listed = _library(view, source).list_supported_models()
    return [model for model in listed if not model["model"].startswith(_REGISTERED)]


class FastembedEncoder:
    """Encode images or texts with a model of fastembed; see ``open_fastembed``."""

    def __init__(self, files: FastembedFiles) -> None:
        self._files, self._model = files, files.load()
        self.fingerprint, self.label = files.fingerprint, files.label

    @property
    def origin(self) -> dict[str, Any]:
        """What a saved model stores to open the same encoder again."""
        return {"source": FASTEMBED + self._files.source, "weights": str(self._files.folder)}

    @cached_property
    def dimension(self) -> int:
        """Number of columns of the features."""
        return int(self.encode([make_example() if self._files.view == "image" else "a"]).shape[1])

    def encode(self, inputs: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return the features of 8-bit RGB images, or of texts, one row for each."""
        inputs = list(iterate_texts(inputs))
        if not inputs:
            return np.empty((0, self.dimension), np.float32)
        view = self._files.view
        try:
            # Queries are encoded as captions are, because the model of both views is fitted on captions.
            rows = np.stack(list(self._model.embed(inputs, batch_size=_BATCH[view])))
        except Exception as error:  # fastembed passes on what onnxruntime and others raise
            raise InputError(f"{self.label} could not encode these {view}s ({error}).") from None
        features: np.ndarray[Any, Any] = check_view(rows, f"the output of {self.label}")
        return features

    def __reduce__(self) -> tuple[Any, ...]:
        # A session cannot be pickled, so another process opens the files itself.
        files = self._files
        return reopen, (partial(_open_again, files.view, files.source, files.folder), self.fingerprint)


class FastembedImageEncoder(FastembedEncoder):
    """Encode images with a model of fastembed, which can be resized ahead in other threads."""

    def __init__(self, files: FastembedFiles) -> None:
        super().__init__(files)
        output = self._model.model.model.get_outputs()[0]
        if files.source != files.model and any(side != 1 for side in output.shape[2:]):
            raise InputError(
                f"the first output of {files.folder / files.network} has the shape {output.shape}, expected "
                "one row per image; pass the .onnx file itself, with a recipe that says how to pool."
            )

    def prepare(self, image: Image.Image) -> Image.Image:
        """Return the image in the size in which the network sees it.

        ``encode`` resizes it once more, which changes nothing. Without this, all images of a batch would be
        in memory as large as they were decoded.
        """
        from PIL import Image

        for transform in self._model.model.processor.transforms:
            (result,) = transform([image])
            if not isinstance(result, Image.Image):
                break
            image = result
        return image

    def encode_prepared(self, prepared: Sequence[Image.Image]) -> np.ndarray[Any, Any]:
        """Return the features of images that went through ``prepare``, one row for each."""
        return self.encode(prepared)


@dataclass(frozen=True)
class FastembedFiles:
    """The files of a model.

    ``model`` is the name under which fastembed knows how to use them. ``source`` is that name if fastembed
    lists these very files, and otherwise the folder.
    """

    view: View
    source: str
    folder: Path
    network: str
    model: str

    @property
    def label(self) -> str:
        """The name of the model for people."""
        return self.folder.name if os.path.isabs(self.source) else self.source

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all that decides the features."""
        network = self.folder / self.network
        files = list_network_files(network) if network.suffix == ".onnx" else [network]
        files += [self.folder / name for name in _SETTINGS[self.view]]
        lines = sorted(f"{file.name}\0{file_digest(file)}\n" for file in files if file.is_file())
        return f"{FASTEMBED}{hashlib.sha256(''.join([self.model, *lines]).encode()).hexdigest()[:32]}"

    def load(self) -> Any:
        """Return fastembed's own object, with the network loaded."""
        folder = str(self.folder)
        # The cache is not used, but would be made if it were not named.
        places = {"cache_dir": folder, "specific_model_path": folder}
        try:
            loaded = _library(self.view)(self.model, lazy_load=True, **places)
            # fastembed calls this with the options of onnxruntime, few of which it lets its users set.
            loaded.model.add_extra_session_options = lambda options, _: set_session_options(options)
            # A table of word vectors has no network.
            load = getattr(loaded.model, "load_onnx_model", None) or loaded.model.load_model
            load()
            return loaded
        except Exception as error:  # fastembed passes on what onnxruntime and others raise
            raise InputError(f"fastembed could not open {folder} ({error}).") from None

    def open(self) -> FastembedEncoder:
        """Return the encoder."""
        return FastembedImageEncoder(self) if self.view == "image" else FastembedEncoder(self)


def open_fastembed(view: View, source: str) -> FastembedEncoder:
    """Open a model of fastembed as an encoder of images or of texts.

    ``source`` is the name of a model or a folder. fastembed fetches a named model once, into the cache.
    """
    return find_fastembed(view, source).open()


def find_fastembed(view: View, source: str, folder: Path | None = None) -> FastembedFiles:
    """Find the files of a model without loading it.

    If the ``folder`` is given in which ``source`` was before, nothing is fetched: the files are still there
    or, if the model has a name, in the cache.
    """
    listed = list_fastembed_models(view, source)
    named = next((model for model in listed if model["model"].lower() == source.lower()), None)
    if folder is not None and not (folder.is_absolute() and folder.is_dir()):
        if named is None:
            raise InputError(f"{folder} does not exist any more")
        cached = _find_cached(view, named)
        if cached is None:
            raise InputError(f"it is neither in {folder} nor in the cache; {FASTEMBED}{source} fetches it")
        folder = cached
    elif folder is None and os.path.isdir(source):
        folder = Path(source).absolute()
        named = named or _recognise(folder, listed)
    elif folder is None:
        if named is None:
            raise _unknown_model(view, source, [model["model"] for model in listed])
        folder = _find_cached(view, named) or _fetch(view, named)
    if named is not None:
        network, model = named["model_file"], named["model"]
        if not (folder / network).is_file():
            raise InputError(f"{folder} has no {network}, the network of {model}.")
        return FastembedFiles(view, model, folder, network, model)
    describe = _describe_images if view == "image" else _describe_texts
    return FastembedFiles(view, str(folder), folder, *describe(folder))


def _open_again(view: View, source: str, folder: Path) -> FastembedEncoder:
    return find_fastembed(view, source, folder).open()


def _recognise(folder: Path, listed: Sequence[Description]) -> Description | None:
    """Return the model that a folder is named for and has the network of, if there is one."""
    cached = folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")
    name = folder.parent.parent.name.rpartition("--")[2] if cached else folder.name
    for model in listed:
        names = {f"/{path}".lower().rpartition("/")[2] for path in (model["model"], model["sources"]["hf"])}
        if name.lower() in names and (folder / model["model_file"]).is_file():
            return model
    return None


def _describe_images(folder: Path) -> tuple[str, str]:
    if not (folder / "model.onnx").is_file():
        raise InputError(
            f"{folder} has no model.onnx, and is not named for an image model of fastembed; put the network "
            "and its preprocessor_config.json into one folder."
        )
    return "model.onnx", _PLAIN


def _describe_texts(folder: Path) -> tuple[str, str]:
    """Return the network of a sentence-transformers folder, and the name it is registered by."""
    networks = [name for name in ("model.onnx", "onnx/model.onnx") if (folder / name).is_file()]
    if not networks or not (folder / "modules.json").is_file():
        missing = "modules.json" if networks else "model.onnx"
        raise InputError(
            f"{folder} has no {missing}, and is not named for a text model of fastembed; give a folder of "
            "sentence-transformers with the network as model.onnx or onnx/model.onnx."
        )
    try:
        modules = parse_json((folder / "modules.json").read_bytes())
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        pooling = parse_json((folder / modules[1]["path"] / "config.json").read_bytes())
        modes = pooling.get("pooling_mode") or [
            key.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
            for key, value in pooling.items()
            if key.startswith("pooling_mode_") and value is True
        ]
        width = int(pooling.get("embedding_dimension") or pooling["word_embedding_dimension"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: modules.json and its pooling could not be read ({error!r}).") from None
    mode = modes if isinstance(modes, str) else "+".join(modes)
    if (
        kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
        or mode not in _POOLING
    ):
        raise InputError(
            f"{folder} is {', '.join(kinds)} with pooling {mode!r}; fastembed does Transformer, Pooling "
            f"({', '.join(_POOLING)}) and Normalize."
        )
    return networks[0], _register(networks[0], mode, width, normalize="Normalize" in kinds)


def _register(network: str, mode: str, width: int, *, normalize: bool) -> str:
    """Tell fastembed how to use a network, and return the name for that."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    name = f"{_REGISTERED}{network}, {mode}{' normalized' if normalize else ''}, {width}"
    with _registering:
        if not any(model["model"] == name for model in TextEmbedding.list_supported_models()):
            TextEmbedding.add_custom_model(
                name, PoolingType(_POOLING[mode]), normalize, ModelSource(hf=name), width, network
            )
    return name


def _fetch(view: View, description: Description) -> Path:
    """Download a model into the cache, and return its folder."""
    model, cache = description["model"], _cache()
    files = [description["model_file"], *description["additional_files"]]
    try:
        # download_model would try three times, wait in between, and not say why it failed.
        source = description["sources"]["hf"]
        return Path(_library(view).download_files_from_huggingface(source, cache, files)).absolute()
    except Exception as failure:  # of the network, the hub or the disk
        error: BaseException = failure
        while error.__cause__ is not None and str(error.__cause__):  # the hub's own words are vague
            error = error.__cause__
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"{model} ({description['size_in_GB']} GB) is not in the cache, {cache}, and could not be "
            f"downloaded ({reason}); download it elsewhere and pass its folder ({FASTEMBED}FOLDER), or set "
            "FASTEMBED_CACHE_PATH to a cache that has it."
        ) from None


def _find_cached(view: View, description: Description) -> Path | None:
    """Return the folder of a model in the cache, if it is there."""
    from fastembed.common.model_description import DenseModelDescription, ModelSource
    from loguru import logger

    model = DenseModelDescription(**{**description, "sources": ModelSource(**description["sources"])})
    logger.disable("fastembed")  # which logs as an error that a model is not in the cache
    try:
        return Path(_library(view).download_model(model, _cache(), local_files_only=True)).absolute()
    except ValueError:
        return None
    finally:
        logger.enable("fastembed")


def _cache() -> str:
    # fastembed's own default is in the folder for temporary files: gone after a restart, and open to others.
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("FASTEMBED_CACHE_PATH") or os.path.join(home, "fastembed")


def _unknown_model(view: View, source: str, names: Sequence[str]) -> InputError:
    by_key = {key: name for name in names for key in (name.lower(), name.lower().rpartition("/")[2])}
    keys = [key for key in by_key if source.lower() in key]
    keys += difflib.get_close_matches(source.lower(), by_key, n=6, cutoff=0.5)
    closest = list(dict.fromkeys(by_key[key] for key in keys))[:3]
    hint = f"its closest names are {', '.join(closest)}" if closest else "check the path or the name"
    return InputError(f"{source!r} is no folder, and fastembed has no {view} model of that name; {hint}.")


def _library(view: View, source: str = "") -> Any:
    try:
        import fastembed
    except ImportError:
        raise missing_package_error(f"the encoder '{FASTEMBED}{source}' needs", "encoders") from None
    return fastembed.ImageEmbedding if view == "image" else fastembed.TextEmbedding
