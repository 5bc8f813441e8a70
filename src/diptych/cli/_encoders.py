"""The options that name encoders, and ``encoders``: what is installed, and which to name for which need."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import InputError
from diptych.cli._run import AsJson, align, option, print_json, refuse_unused, say

if TYPE_CHECKING:
    from diptych.encoders import HKSE
    from diptych.retrieval import Retriever
    from diptych.retrieval._items import View
    from diptych.retrieval._recommended import Recommendation

encoder_option = partial(option, panel="Encoders")

Device = Annotated[str, typer.Option(help="cpu, or a torch device such as cuda.", rich_help_panel="Run")]


@dataclass(frozen=True)
class ImageEncoderOptions:
    """The encoder of the images."""

    image_encoder: list[str] | None = encoder_option(
        None,
        "An .onnx file, fastembed:NAME, fastembed:FOLDER, pyramid (no weights), or FILE.py:NAME: "
        "an encoder in your own Python file, which is run. See diptych encoders. Several: give the option "
        "several times.",
    )
    recipe: str | None = encoder_option(
        None,
        "Preprocessing of the image network (docs/data.md), such as caffe. Default: what the network "
        "says, else ImageNet's.",
    )

    def open_image_encoder(self) -> Any:
        """Return the image encoder, or a list of several, as ``Retriever`` takes them; None if not named.

        Bare names are kept, so that a model can add its recipes.
        """
        names = self.image_encoder or []
        if self.recipe is not None:
            if not names:
                raise InputError("--recipe needs --image-encoder; give both.")
            if len(names) > 1:
                raise InputError(
                    f"--recipe is for one --image-encoder, and {len(names)} were given; write the recipe "
                    "into a JSON file beside each network, or give the encoders in Python."
                )
            from diptych.encoders import image_encoder

            return image_encoder(names[0], self.recipe)
        return _one_or_all([_open_image_encoder(name) for name in names])


@dataclass(frozen=True)
class TextEncoderOptions:
    """The encoder of the texts."""

    text_encoder: list[str] | None = encoder_option(
        None,
        "fastembed:NAME, fastembed:FOLDER, a sentence-transformers model, hkse, the folder of a "
        "saved HKSE, or FILE.py:NAME: a function in your own Python file, which is run. See diptych "
        "encoders. Several: give the option several times.",
    )

    def open_text_encoder(self, device: str = "cpu", hkse: HKSE | str = "hkse") -> Any:
        """Return the text encoder, or a list of several, as ``Retriever`` takes them; None if not named.

        ``hkse`` is what that name stands for: an HKSE to fit, or the one that is stored with a model.
        """
        return _one_or_all(
            [hkse if name == "hkse" else _open_text_encoder(name, device) for name in self.text_encoder or ()]
        )


@dataclass(frozen=True)
class EncoderOptions(TextEncoderOptions, ImageEncoderOptions):
    """The encoders of both views."""


@dataclass(frozen=True)
class LoadOptions(EncoderOptions):
    """The encoders for a model that is loaded, and where they run."""

    device: Device = "cpu"

    def refuse(self, view: View, reason: str) -> None:
        """Raise an error for an encoder of a view that encodes nothing; ``reason`` says why."""
        names = ("image_encoder", "recipe") if view == "image" else ("text_encoder", "device")
        refuse_unused(self, names, reason)

    def load(self, model: Path, *, mmap: bool = True) -> Retriever:
        """Load a model with these encoders."""
        from diptych.retrieval import Retriever

        encoders = self.open_image_encoder(), self.open_text_encoder(self.device)
        return Retriever.load(model, *encoders, mmap=mmap, device=self.device)


def encoders(
    everything: bool = option(False, "List every model of fastembed.", "--all"), as_json: AsJson = False
) -> None:
    """List the encoders: what is installed, and which to name for which need.

    Example: `diptych encoders`

    Example: `diptych encoders --all`
    """
    from diptych.retrieval._recommended import FIELDS, RECOMMENDED, installed_packages

    packages = installed_packages()
    encoders = _list_all() if everything else list(RECOMMENDED)
    if as_json:
        print_json({"installed": packages, "encoders": list(map(asdict, encoders)), "fields": dict(FIELDS)})
        return
    for package, version in packages.items():
        say(f"{package} {version or f'is not installed: pip install {package}'}")
    rows = [("view", "name", "dimension", "GB", "licence", "for"), *map(_describe, encoders)]
    for line in align(rows):
        say(line)
    for field, pointer in FIELDS.items():
        say(f"{field} images: {pointer}")
    say("Give the name as --image-encoder or --text-encoder; docs/encoders.md says more.")


def _list_all() -> list[Recommendation]:
    from diptych.encoders._fastembed import FASTEMBED, list_fastembed_models
    from diptych.retrieval._items import VIEWS
    from diptych.retrieval._recommended import Recommendation

    return [
        Recommendation(
            *(view, model["description"], FASTEMBED + model["model"]),
            *(model["dim"], model["size_in_GB"], model["license"]),
        )
        for view in VIEWS
        for model in list_fastembed_models(view)
    ]


def _describe(encoder: Recommendation) -> tuple[str, ...]:
    size = f"{encoder.gigabytes:g}" if encoder.gigabytes else "-"
    return encoder.view, encoder.name, str(encoder.dimension), size, encoder.licence or "-", encoder.need


def _open_text_encoder(name: str, device: str) -> Any:
    """Return a saved or named text encoder; ``auto`` stays a name."""
    if name == "auto":
        return name
    from diptych._model_folder import is_model_folder
    from diptych.encoders import HKSE, sentence_encoder

    if is_model_folder(name):
        return HKSE.load(name)
    if (encoder := _load_from_file(name)) is not None:
        return sentence_encoder(encoder)
    return sentence_encoder(name, device=None if device == "cpu" else device)


def _load_from_file(name: str) -> Any:
    """Return the object that FILE.py:NAME names in a Python file of the user; None for any other name.

    Only a command runs such a file: what a model folder names is never run.
    """
    path, _, variable = name.rpartition(":")
    if not path.endswith(".py"):
        return None
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist or is not a file; check the path.")
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)  # dataclasses and pickle look it up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} could not be run ({type(error).__name__}: {error}).") from error
    if not hasattr(module, variable):
        raise InputError(f"{path} has no {variable!r}; give FILE.py:NAME, the name of an encoder in it.")
    return getattr(module, variable)


def _open_image_encoder(name: str) -> Any:
    from diptych.encoders import ImageEncoder

    encoder = _load_from_file(name)
    if encoder is not None and not isinstance(encoder, ImageEncoder):
        raise InputError(f"{name} is not an encoder; make one with diptych.encoders.FunctionEncoder.")
    return name if encoder is None else encoder


def _one_or_all(encoders: list[Any]) -> Any:
    return None if not encoders else encoders[0] if len(encoders) == 1 else encoders
