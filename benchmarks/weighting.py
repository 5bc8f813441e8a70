"""Does the paper's order of weightings hold? ResNet-50 × MiniLM on Flickr8k's test split, γ fixed.

γ is 1 % of the largest squared singular value on either side for every weighting, so nothing is tuned.
"""

from __future__ import annotations

from recording import pin_threads, real_data, record

pin_threads(2)

import numpy as np  # noqa: E402

from diptych import AWCCA, retrieval_scores  # noqa: E402
from diptych.cca import spectra  # noqa: E402

WEIGHTINGS = {
    "query generation (asymmetric, ours)": "asymmetric",
    "plain CCA": "none",
    "symmetric Σ": "symmetric",
    "symmetric Σ²": (2.0, 2.0),
    "search generation": "search-generation",
}


def main() -> None:
    folder = real_data() / "flickr8k"
    x = np.load(folder / "resnet50.npy").astype(np.float32)
    y = np.load(folder / "minilm.npy").astype(np.float32)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    pairing = np.arange(40000) // 5
    train = x[:6000], y[:30000], pairing[:30000]
    found = spectra(*train)
    gammas = float(0.01 * found.s_x[0] ** 2), float(0.01 * found.s_y[0] ** 2)
    rows = []
    for name, weighting in WEIGHTINGS.items():
        model = AWCCA(params=gammas, weighting=weighting).fit(*train)
        row = {"weighting": name}
        for task in ("search", "annotate"):
            test = model.transform(x[7000:], y[35000:], task=task)
            scores = retrieval_scores(*test, pairing[:5000], task=task)
            row[task] = " / ".join(
                [*(f"{scores[k]:.1f}" for k in ("r@1", "r@5", "r@10")), f"{scores['median_rank']:.0f}"]
            )
        rows.append(row)
    record("weighting", rows, "r@1 / r@5 / r@10 / median rank on the test split; γ = 0.01 σ₁² on both sides.")


if __name__ == "__main__":
    main()
