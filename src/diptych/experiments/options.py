"""How much of each experiment is run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How much is run.

    Attributes
    ----------
    grid
        Points per side where filters are selected.
    map_shape
        Points of the dense maps.
    word_features, sentence_features
        m and m' of HKSE.
    alphas
        Points of the curve over (Σ^α, Σ^(1−α)).
    timed_points
        Grid points on which the textbook is timed, per side.
    all_images
        Whether the main tables take every image feature, or the first alone.
    draws, sampled_words, sampled_captions, feature_counts
        Of the approximation of HKSE.
    neighbours
        Pictures in a panel of the plane.
    seeds
        How many seeds the main tables are run with.
    quick
        Whether this is the small version, whose verdicts are indicative.
    """

    grid: int = 20
    map_shape: tuple[int, int] = (37, 91)
    word_features: int = 2000
    sentence_features: int = 2000
    alphas: int = 11
    timed_points: int = 4
    all_images: bool = True
    draws: int = 10
    sampled_words: int = 1500
    sampled_captions: int = 400
    feature_counts: tuple[int, ...] = (125, 250, 500, 1000, 2000, 4000, 8000)
    neighbours: int = 40
    seeds: int = 1
    quick: bool = False

    @classmethod
    def for_dataset(cls, name: str, *, quick: bool = False, seeds: int = 1) -> Options:
        """As the paper has it (m' = 3000 on COCO, 2000 elsewhere), or a small version of it."""
        if quick:
            return cls(
                grid=7,
                map_shape=(10, 13),
                word_features=300,
                sentence_features=300,
                alphas=5,
                timed_points=2,
                all_images=False,
                draws=6,
                sampled_words=600,
                sampled_captions=150,
                feature_counts=(125, 500, 2000),
                neighbours=24,
                seeds=seeds,
                quick=True,
            )
        return cls(sentence_features=3000 if name == "coco" else 2000, seeds=seeds)
