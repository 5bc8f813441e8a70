"""Photos of one colour with what programs and cameras write into files, and a dual encoder of colours."""

import struct

import numpy as np
from PIL import Image

from diptych import Retriever
from diptych.encoders import FunctionEncoder

COLOURS = {"red": (220, 20, 30), "green": (30, 200, 40), "blue": (20, 40, 210)}
_NAMESPACES = (
    'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:dc="http://purl.org/dc/elements/1.1/" '
    'xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"'
)


def make_xmp(description=(), title="", tags=(), attributes="", head=""):
    """Return an XMP packet; descriptions are in several languages."""
    texts = "".join(f"<rdf:li>{text}</rdf:li>" for text in description)
    words = "".join(f"<rdf:li>{tag}</rdf:li>" for tag in tags)
    return (
        f'{head}<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF {_NAMESPACES}><rdf:Description {attributes}>'
        f"<dc:description><rdf:Alt>{texts}</rdf:Alt></dc:description>"
        f"<dc:title><rdf:Alt><rdf:li>{title}</rdf:li></rdf:Alt></dc:title>"
        f"<dc:subject><rdf:Bag>{words}</rdf:Bag></dc:subject>"
        "</rdf:Description></rdf:RDF></x:xmpmeta>"
    ).encode()


def make_iptc(**records):
    """Return a Photoshop block of a JPEG file with IPTC records: ``d120=[b"…"]``."""
    data = b"".join(
        struct.pack(">BBBH", 0x1C, 2, int(name[1:]), len(value)) + value
        for name, values in records.items()
        for value in values
    )
    data += b"\0" * (len(data) % 2)
    block = b"8BIM" + struct.pack(">HBBI", 0x0404, 0, 0, len(data)) + data
    return b"\xff\xed" + struct.pack(">H", len(block) + 16) + b"Photoshop 3.0\0" + block


def make_exif(**tags):
    """Return EXIF data: ``make``, ``model``, ``orientation``, ``taken``, and ``gps`` as a dict of tags."""
    exif = Image.Exif()
    for name, tag in (("make", 0x10F), ("model", 0x110), ("orientation", 0x112)):
        if name in tags:
            exif[tag] = tags[name]
    if "taken" in tags:
        exif.get_ifd(0x8769)[0x9003] = tags["taken"]
    exif.get_ifd(0x8825).update(tags.get("gps", {}))
    return exif


def write_photo(path, colour="red", size=(24, 16), *, iptc=b"", shade=0, **content):
    """Write a photo of one colour; ``content`` as Pillow takes it (``xmp``, ``exif``)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, tuple(max(0, part - shade) for part in COLOURS[colour])).save(path, **content)
    if iptc:
        data = path.read_bytes()
        path.write_bytes(data[:2] + iptc + data[2:])
    return path


def _see_colours(images):
    return np.array([np.asarray(image, np.float32).mean(axis=(0, 1)) - 80 for image in images])


class ColourWords:
    """Encode texts by the colours that they name, as images of these are."""

    fingerprint = "colour words"

    def encode(self, texts):
        colours = [
            np.sum([rgb for name, rgb in COLOURS.items() if name in text.lower()] or [(90, 90, 90)], axis=0)
            for text in texts
        ]
        return np.array(colours, np.float32) - 80


def towers():
    """Return the two towers of a dual encoder of colours."""
    return FunctionEncoder(_see_colours, "colours"), ColourWords()


def make_library(folder):
    """Return an empty library in a folder."""
    retriever = Retriever.zero_shot(*towers())
    retriever.save(folder)
    return retriever
