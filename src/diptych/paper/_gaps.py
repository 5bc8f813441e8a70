"""What the paper had and this run had not, and how to get it."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.paper._materials import DATASETS, FILES, Materials


@dataclass(frozen=True)
class Gap:
    """Something that was not run: what, and how to get the file."""

    what: str
    how: str


def gaps(materials: Materials) -> list[Gap]:
    """Features and datasets of the paper that are not at hand."""
    found = []
    images = {source.name for source in materials.images}
    texts = {source.name for source in materials.texts}
    split = FILES.get(materials.name, "PAIRS")
    if "VGG-19" not in images:
        found.append(
            Gap(
                "VGG-19 image features (4096 numbers, mean of ten crops): the rows “VGG-19” were not run",
                f"diptych encode images {split} --images PHOTOS --image-encoder vgg19.onnx "
                "--recipe vgg-ten-crops -o DATA/vgg19 (Karpathy's vgg_feats.mat is no substitute: it holds "
                "VGG-16 on one view of each image)",
            )
        )
    if "ResNet-101" not in images:
        found.append(
            Gap(
                "ResNet-101 image features (2048 numbers, full picture): the rows “ResNet-101” were not run",
                f"diptych encode images {split} --images PHOTOS --image-encoder torchvision:resnet101 "
                "--recipe resnet-full-image -o DATA/resnet101",
            )
        )
    if "skip-thoughts" not in texts:
        found.append(
            Gap(
                "skip-thought vectors (4800 numbers): the rows “skip-thoughts” were not run",
                "encode every caption in the order of the split file with the skip-thoughts encoder "
                "(github.com/ryankiros/skip-thoughts) and save the array as DATA/skipthoughts.npy",
            )
        )
    if "googlenews-vectors-negative300" not in materials.vectors_kind.lower():
        found.append(
            Gap(
                "the paper's word vectors, all of GoogleNews-vectors-negative300; used: "
                f"{materials.vectors_kind}",
                "download it (code.google.com/archive/p/word2vec) and give it with --vectors",
            )
        )
    for name, (title, _) in DATASETS.items():
        if name not in (materials.name, "scenes"):
            found.append(
                Gap(
                    f"{title}: its tables were not run",
                    f"diptych reproduce {name} --data FOLDER with {FILES[name]} (Karpathy's split files, "
                    "cs.stanford.edu/people/karpathy/deepimagesent) and features in it",
                )
            )
    return found
