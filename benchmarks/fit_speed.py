"""Fitting 6,000 images × 5 captions at 2048 × 2000, beside cca-zoo's RidgeCCA on the same data, in one run.

Both run in a process of their own with the same number of threads on the same float32 arrays; both end
with canonical weights and correlations of every component. cca-zoo needs each image repeated per caption.

``--selection``: whole fits on Flickr8k with a selection among 20 × 20 points, beside a textbook fit: the same
moments and spectra, one SVD of T for each point (timed on 25 points spread over the grid and extrapolated to
400), and the SVDs of the two models.

``--sparse``: fits of a sparse view at given parameters, with more rows than columns and with fewer, beside
fits of the same view made dense, each in a process of its own.
"""

from __future__ import annotations

import json
import sys

from measuring import (
    clock,
    load_flickr8k,
    pin_threads,
    read_memory,
    record,
    require,
    run_alone,
    split_flickr8k,
    time_call,
)

pin_threads(2)

import numpy as np  # noqa: E402

N, CAPTIONS, M_X, M_Y = 6000, 5, 2048, 2000


def generate_views():
    """Return images, captions and pairing: two noisy views of a hidden cause."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((N, 300), dtype=np.float32)
    x = hidden @ rng.standard_normal((300, M_X), dtype=np.float32)
    x += 10 * rng.standard_normal((N, M_X), dtype=np.float32)
    pairing = np.repeat(np.arange(N), CAPTIONS)
    y = hidden[pairing] @ rng.standard_normal((300, M_Y), dtype=np.float32)
    y += 10 * rng.standard_normal((N * CAPTIONS, M_Y), dtype=np.float32)
    return x, y, pairing


def measure_fit(which: str) -> dict[str, float]:
    """Return the seconds and memory of one fit, and its first correlation."""
    x, y, pairing = generate_views()
    size = (x.nbytes + y.nbytes) / 2**20
    components = 10 if which == "zoo-10" else min(M_X, M_Y)
    if which.startswith("zoo"):
        from cca_zoo.linear import RidgeCCA

        x = x[pairing]
        before, start = read_memory("VmRSS"), clock()
        model = RidgeCCA(n_components=components, shrinkage=0.1).fit([x, y])
        u, v = (w[:, :1] for w in model.weights_)
        seconds, peak = clock() - start, read_memory("VmHWM")
        images = x @ u
    else:
        from diptych import AWCCA

        gamma = 0.1 * N * CAPTIONS / 0.9
        before, start = read_memory("VmRSS"), clock()
        model = AWCCA(params=(gamma, gamma), precision=which).fit(x, y, pairing)
        u, v = model.models_["search"].x_weights[:, :1], model.models_["search"].y_weights[:, :1]
        seconds, peak = clock() - start, read_memory("VmHWM")
        images = (x @ u)[pairing]
    top = float(np.corrcoef(images[:, 0], (y @ v)[:, 0])[0, 1])
    return {"seconds": seconds, "top": top, "memory": peak - before, "input": size}


NAMES = {
    "float64": "diptych, all components, float64 products",
    "float32": "diptych, all components, float32 products",
    "zoo-10": "cca-zoo RidgeCCA, 10 components",
    "zoo": "cca-zoo RidgeCCA, all components",
}


def main() -> None:
    results = {which: run_alone(which) for which in NAMES}
    rows = [
        {
            "fit": name,
            "seconds": f"{results[which]['seconds']:.1f}",
            "share of the faster cca-zoo": f"{results[which]['seconds'] / results['zoo-10']['seconds']:.2f}",
            "peak memory above baseline ÷ input": f"{results[which]['memory'] / results[which]['input']:.2f}",
            "first correlation": f"{results[which]['top']:.6f}",
        }
        for which, name in NAMES.items()
    ]
    size = results["float64"]["input"]
    note = f"{N:,} × {M_X} images and {N * CAPTIONS:,} × {M_Y} captions, float32 ({size:.0f} MiB)."
    record("fit_speed", rows, note)


def measure_selection() -> None:
    """Time whole fits with each filter, and textbook fits, and write a table."""
    from diptych import AWCCA
    from diptych.cca import spectra
    from diptych.cca._canonical import decompose_t
    from diptych.cca.selection import make_grid, make_problem, make_weights, textbook_ranks

    training, validation, _ = split_flickr8k(*load_flickr8k("resnet50", "hkse-rbf-rbf"))
    spectra(*(view[:500] for view in training[:2]), np.arange(500))  # load the libraries
    rows = []
    for name, spacing in (("tikhonov", "log"), ("tsvd", "rank"), ("guided", "rank")):
        path = None
        for precision in ("float64", "float32"):
            model = AWCCA(filter=name, grid=(spacing, 20), precision=precision)
            fit, _ = time_call(lambda model=model: model.fit(*training, validation=validation))
            scored, score = time_call(lambda model=model: model.score(*validation))
            decomposed, _ = time_call(model.models_.values)
            prepared, fitted = time_call(lambda precision=precision: spectra(*training, precision=precision))
            problem = make_problem(fitted, validation)
            grid = make_grid("tikhonov" if name == "tikhonov" else "tsvd", (spacing, 20), fitted)
            w_x, w_y = make_weights(problem, fitted, grid)
            if path is None:
                start, points = clock(), [(i, j) for i in range(1, 20, 4) for j in range(1, 20, 4)]
                for i, j in points:
                    next(textbook_ranks(problem, w_x.rows[i], w_y.rows[j]))
                path = (clock() - start) / len(points) * 400
            start = clock()
            for own in model.models_.values():
                roots = (
                    each.denominators(s) ** -0.5
                    for each, s in ((own.filter_x, fitted.s_x), (own.filter_y, fitted.s_y))
                )
                decompose_t(fitted.t0, *roots)
            textbook = prepared + path + clock() - start
            rows.append(
                {
                    "filter": name,
                    "moments": precision,
                    "fit, s": f"{fit:.1f}",
                    "moments and spectra alone, s": f"{prepared:.1f}",
                    "of the fit, path, s": f"{model.path_.seconds:.1f}",
                    "score, s": f"{scored:.1f}",
                    "both models, s": f"{decomposed:.1f}",
                    "textbook fit, s": f"{textbook:.0f}",
                    "textbook ÷ fit": f"{textbook / fit:.0f}×",
                    "textbook ÷ (fit + both models)": f"{textbook / (fit + decomposed):.0f}×",
                    "mean r@1 on validation": f"{score:.2f}",
                }
            )
            print(rows[-1], flush=True)
    record(
        "fit_selection",
        rows,
        "6,000 × 2048 images and 30,000 × 2,000 captions, float32; selected on 1,000 × 5,000. A textbook fit "
        "ends with both models, which AWCCA decomposes when they are first read.",
    )


SPARSE = {"tall": (20_000, 2_000), "wide": (1_000, 20_000)}
SHARES = (0.001, 0.01, 0.05)


def measure_sparse_fit(shape: str, share: float, how: str) -> dict[str, float]:
    """Return the seconds and memory of one fit of a sparse view, or of the same made dense."""
    import scipy.sparse

    from diptych import AWCCA

    rng = np.random.default_rng(0)
    (rows, columns), entries = SPARSE[shape], int(share * np.prod(SPARSE[shape]))
    at = rng.integers(0, rows, entries), rng.integers(0, columns, entries)
    x = scipy.sparse.csr_array((rng.random(entries), at), shape=(rows, columns))
    y = (x @ rng.standard_normal((columns, 100))) + rng.standard_normal((rows, 100))
    AWCCA(params=(1.0, 1.0)).fit(y[:100, :10], y[:100]).models_.values()  # load the libraries
    before, start = read_memory("VmRSS"), clock()
    model = AWCCA(params=(1.0, 1.0)).fit(x if how == "sparse" else x.toarray(), y)
    first = float(model.models_["search"].correlations[0])
    return {"seconds": clock() - start, "memory": read_memory("VmHWM") - before, "first": first}


def measure_sparse() -> None:
    """Time fits of sparse views beside dense ones, and write a table."""
    rows = []
    for shape, (height, width) in SPARSE.items():
        for share in SHARES:
            made = {how: run_alone("--sparse", shape, share, how) for how in ("sparse", "dense")}
            assert abs(made["sparse"]["first"] - made["dense"]["first"]) < 1e-8
            rows.append(
                {
                    "X": f"{height:,} × {width:,}",
                    "entries": f"{share:.1%}",
                    "sparse, s": f"{made['sparse']['seconds']:.1f}",
                    "dense, s": f"{made['dense']['seconds']:.1f}",
                    "sparse, MiB": f"{made['sparse']['memory']:.0f}",
                    "dense, MiB": f"{made['dense']['memory']:.0f}",
                }
            )
            print(rows[-1], flush=True)
    note = "Y has 100 dense columns; given parameters, both models made. Memory is the peak above the start."
    record("fit_sparse", rows, note)


if __name__ == "__main__":
    if sys.argv[1:] == ["--sparse"]:
        measure_sparse()
    elif sys.argv[1:2] == ["--sparse"]:
        print(json.dumps(measure_sparse_fit(sys.argv[2], float(sys.argv[3]), sys.argv[4])))
    elif sys.argv[1:] == ["--selection"]:
        measure_selection()
    elif len(sys.argv) > 1:
        print(json.dumps(measure_fit(sys.argv[1])))
    else:
        require("cca_zoo", "pip install cca-zoo")
        main()
