"""Fitting 6,000 images × 5 captions at 2048 × 2000, beside cca-zoo's RidgeCCA on the same data, in one run.

Both run in a process of their own with the same number of threads on the same float32 arrays; both end
with canonical weights and correlations of every component. cca-zoo needs each image repeated per caption.
"""

from __future__ import annotations

import json
import subprocess
import sys

from measuring import clock, pin_threads, read_memory, record

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
        seconds, peak = clock() - start, read_memory("VmHWM")
        u, v = model.models_["search"].x_weights[:, :1], model.models_["search"].y_weights[:, :1]
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
    results = {}
    for which in NAMES:
        out = subprocess.run([sys.executable, __file__, which], check=True, stdout=subprocess.PIPE, text=True)
        results[which] = json.loads(out.stdout.splitlines()[-1])
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


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_fit(sys.argv[1])))
    else:
        main()
