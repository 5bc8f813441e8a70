"""The vocabulary trick beside a token-by-token version, and a COCO-sized stream of captions into moments.

Each part runs in a process of its own. The stream's captions follow Flickr8k's lengths and word frequencies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial

from recording import pin_threads, real_data, record

pin_threads(2)

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402

IMAGES, CAPTIONS_EACH, IMAGE_FEATURES = 113_287, 5, 2048
WORD_FEATURES, SENTENCE_FEATURES = 2000, 3000
BLOCK_ROWS, PEAK_ROWS = 10_240, 2560


def flickr_captions() -> list[str]:
    content = json.loads((real_data() / "flickr8k" / "dataset_flickr8k.json").read_text("utf-8"))
    return [sentence["raw"] for image in content["images"] for sentence in image["sentences"]]


def best(function, repeats=3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def gemm_seconds(a, b, out) -> float:
    start = time.perf_counter()
    np.matmul(a, b, out=out)
    return time.perf_counter() - start


def peak_memory() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def trick() -> dict[str, float]:
    """40,000 captions, both ways, from the same token numbers, in the same blocks."""
    from diptych.text import HKSE
    from diptych.text._fourier import fourier_features
    from diptych.text._words import Corpus, mean_rows

    captions = flickr_captions()
    hkse = HKSE(real_data() / "word2vec-googlenews-26k.bin").fit(captions)
    rows, ends = Corpus.of(captions).lookup(hkse.vectors_.index)
    vectors, weights, offsets = hkse.vectors_.matrix, hkse.word_weights_, hkse.word_offsets_

    def pieces(rows, ends):
        for first in range(0, len(ends), 2048):
            start = ends[first - 1] if first else 0
            part = ends[first : first + 2048]
            yield rows[start : part[-1]], part - start

    def by_vocabulary(rows=rows, ends=ends):
        table = fourier_features(vectors, weights, offsets)
        for own, stops in pieces(rows, ends):
            yield mean_rows(table, own, stops, lambda _: None)

    def by_token(rows=rows, ends=ends):
        for own, stops in pieces(rows, ends):
            features = fourier_features(vectors[own], weights, offsets)
            lengths = np.diff(stops, prepend=0)
            share = np.repeat(np.float32(1) / np.maximum(lengths, 1), lengths).astype(np.float32)
            tokens = np.arange(len(own))
            bag = scipy.sparse.csr_matrix((share, tokens, np.concatenate([[0], stops])))
            yield bag @ features

    def drain(word_layer):
        for _ in word_layer():
            pass

    def whole(word_layer):
        """From strings to the last feature, tokenisation included."""
        own, stops = Corpus.of(captions).lookup(hkse.vectors_.index)
        for means in word_layer(own, stops):
            fourier_features(means, hkse.sentence_weights_, hkse.sentence_offsets_)

    largest = max(np.abs(a - b).max() for a, b in zip(by_vocabulary(), by_token(), strict=True))
    return {
        "tokens": len(rows),
        "vocabulary": len(hkse.vocabulary_),
        "difference": float(largest),
        "word_layer": [best(partial(drain, layer)) for layer in (by_vocabulary, by_token)],
        "end_to_end": [best(partial(whole, layer), 2) for layer in (by_vocabulary, by_token)],
    }


def stream() -> dict[str, float]:
    """566,435 captions to HKSE(rbf, rbf), block by block into the moments."""
    from diptych.cca import Moments
    from diptych.text import HKSE, tokenize

    captions = coco_like(flickr_captions(), tokenize)
    images = np.load(real_data() / "flickr8k" / "resnet50.npy", mmap_mode="r")
    rng = np.random.default_rng(1)
    start = time.perf_counter()
    hkse = HKSE(
        real_data() / "word2vec-googlenews-26k.bin",
        word_features=WORD_FEATURES,
        sentence_features=SENTENCE_FEATURES,
    ).fit(captions)
    fit_seconds = time.perf_counter() - start
    moments = Moments.zero(IMAGE_FEATURES, SENTENCE_FEATURES, precision="float32")
    # The machine's speed changes while others use it, so the product alone is timed beside every block.
    rng_peak = np.random.default_rng(2)
    left = rng_peak.standard_normal((PEAK_ROWS, WORD_FEATURES), dtype=np.float32)
    right = rng_peak.standard_normal((WORD_FEATURES, SENTENCE_FEATURES), dtype=np.float32)
    product = left @ right
    embed_seconds = moment_seconds = peak_seconds = 0.0
    samples = 0
    blocks = hkse.transform_blocks(captions, BLOCK_ROWS, unknown="mean")
    while True:
        start = time.perf_counter()
        y = next(blocks, None)
        embed_seconds += time.perf_counter() - start
        if y is None:
            break
        n_images = len(y) // CAPTIONS_EACH
        x = images[np.sort(rng.integers(len(images), size=n_images))].astype(np.float32)
        pairing = np.repeat(np.arange(n_images), CAPTIONS_EACH)
        start = time.perf_counter()
        moments.update(x, y, pairing)
        moment_seconds += time.perf_counter() - start
        peak_seconds += gemm_seconds(left, right, product)
        samples += 1
    n = IMAGES * CAPTIONS_EACH
    assert moments.count == n
    return {
        "captions": n,
        "fit_seconds": fit_seconds,
        "embed_seconds": embed_seconds,
        "moment_seconds": moment_seconds,
        "peak": 2.0 * samples * PEAK_ROWS * WORD_FEATURES * SENTENCE_FEATURES / peak_seconds,
        "embed_flops": 2.0 * n * WORD_FEATURES * SENTENCE_FEATURES,
        # A Gram matrix is symmetric: half of its products suffice.
        "moment_flops": 1.0 * n * SENTENCE_FEATURES**2
        + IMAGES * IMAGE_FEATURES**2
        + 2.0 * IMAGES * IMAGE_FEATURES * SENTENCE_FEATURES,
        "memory": peak_memory(),
    }


def coco_like(captions: list[str], tokenize) -> list[str]:
    rng = np.random.default_rng(0)
    tokens = [tokenize(caption) for caption in captions]
    everything = np.array([word for words in tokens for word in words])
    lengths = rng.choice([len(words) for words in tokens if words], size=IMAGES * CAPTIONS_EACH)
    drawn = iter(everything[rng.integers(len(everything), size=lengths.sum())].tolist())
    return [" ".join(next(drawn) for _ in range(length)) for length in lengths.tolist()]


def main() -> None:
    found = {}
    for part in ("trick", "stream"):
        out = subprocess.run([sys.executable, __file__, part], check=True, stdout=subprocess.PIPE, text=True)
        found[part] = json.loads(out.stdout.splitlines()[-1])
    trick, stream = found["trick"], found["stream"]
    names = ("once per vocabulary entry", "token by token, blocked")
    rows = [
        {
            "40,000 captions, m = m' = 2000": name,
            "word layer, s": f"{trick['word_layer'][i]:.2f}",
            "end to end, s": f"{trick['end_to_end'][i]:.2f}",
        }
        for i, name in enumerate(names)
    ]
    ratios = [trick[key][1] / trick[key][0] for key in ("word_layer", "end_to_end")]
    rows.append(
        {
            "40,000 captions, m = m' = 2000": "times faster",
            "word layer, s": f"{ratios[0]:.1f}",
            "end to end, s": f"{ratios[1]:.1f}",
        }
    )
    note = (
        f"{trick['tokens']} tokens of {trick['vocabulary']} words; the two differ by at most "
        f"{trick['difference']:.1e}. The word layer ends with the mean of each caption; end to end starts "
        "with strings and ends with the sentence features."
    )
    record("hkse_trick", rows, note)
    seconds = {
        "HKSE(rbf, rbf)": (stream["embed_seconds"], stream["embed_flops"]),
        "moments, float32 products": (stream["moment_seconds"], stream["moment_flops"]),
    }
    seconds["both"] = tuple(map(sum, zip(*seconds.values(), strict=True)))
    rows = [
        {
            "566,435 captions, m = 2000, m' = 3000": name,
            "s": f"{spent:.0f}",
            "captions per s": f"{stream['captions'] / spent:.0f}",
            "GFLOP/s": f"{flops / spent / 1e9:.0f}",
            "share of the sgemm peak": f"{flops / spent / stream['peak']:.2f}",
        }
        for name, (spent, flops) in seconds.items()
    ]
    note = (
        f"Peak memory of the process {stream['memory']:.0f} MiB, the captions themselves included; fitting "
        f"(vocabulary, γ, word layer) took {stream['fit_seconds']:.1f} s more. The sgemm peak, timed "
        f"beside every block in the same process: {stream['peak'] / 1e9:.0f} GFLOP/s. Only matrix products "
        "count as work; tokenising, the sparse product, the cosines and copies are overhead."
    )
    record("hkse_stream", rows, note)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"trick": trick, "stream": stream}[sys.argv[1]]()))
    else:
        main()
