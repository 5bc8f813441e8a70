"""The permutation test of canonical correlations: is it valid, does it find what is there, is it fast?

``calibrate``: p-values of the first three components over simulated data sets. Under the null hypothesis they
are uniform: the Kolmogorov-Smirnov test should not reject, and 5 % of them are at most 0.05. Where the first
component is real, the same holds for the second.

``covariates``: the same for unrelated views that depend on the same covariates, and their correlations over
held-out pairs: with ``covariates=``, with the covariates regressed out of both views beforehand, and without.

``power``: rejection rates of the first two components at 5 %, with both statistics, beside the stepwise test
and cca-zoo's on the same data, for features of equal and of decaying variance.

``speed``: seconds of 1,000 permutations of 300 pairs of 2,000 + 2,000 features with two threads, beside
cca-zoo's test. The first correlations under the same permutations are compared.

``--quick`` takes fewer data sets and permutations.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from measuring import RESULTS, measure_fastest, pin_threads, record, require, start_figure, time_call

pin_threads(2 if "speed" in sys.argv else 1)  # data sets are simulated by two processes

import numpy as np  # noqa: E402

ROWS, X_FEATURES, Y_FEATURES = 30, 60, 50
PERMUTATIONS, FEWER_PERMUTATIONS = 399, 199
LEVEL = 0.05


def simulate(
    seed: int,
    signals: tuple[float, ...] = (),
    rows: int = ROWS,
    features: tuple[int, int] = (X_FEATURES, Y_FEATURES),
    tails: bool = False,
    subjects: int = 0,
    scales: bool = False,
    covariates: int = 0,
    serial: bool = False,
    decay: float = 0.0,
):
    """Return two views that share a hidden cause for each signal, and options of the test that the data need.

    They are unrelated otherwise. ``tails``: their noise has Student's t distribution with three degrees of
    freedom. ``subjects``: rows are repeated measures of so many subjects, who differ in both views.
    ``scales``: the noise of each row of a view has a scale of its own, as a multivariate t distribution with
    three degrees of freedom has. ``covariates``: both views depend on so many. ``serial``: rows are a time
    series. ``decay``: feature j has a standard deviation in proportion to 1/j to this power.
    """
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_t(3, size=(rows, p)) if tails else rng.normal(size=(rows, p)) for p in features)
    if scales:
        x, y = (view * np.sqrt(3 / rng.chisquare(3, size=(rows, 1))) for view in (x, y))
    if serial:
        for view in (x, y):
            for time in range(1, rows):
                view[time] += 0.7 * view[time - 1]
    for at, strength in enumerate(signals):
        hidden = strength * rng.normal(size=rows)
        x[:, at] += hidden
        y[:, at] += hidden
    if decay:
        lengths = (np.arange(1.0, p + 1) ** -decay for p in features)
        x, y = (view * own / np.sqrt(np.mean(own**2)) for view, own in zip((x, y), lengths, strict=True))
    options: dict[str, object] = {"exchange": "shift"} if serial else {}
    if subjects:
        options["blocks"] = blocks = np.arange(rows) % subjects
        hidden = rng.normal(size=(subjects, 3))
        x[:, :3] += 2 * hidden[blocks]
        y[:, :3] += 2 * hidden[blocks]
    if covariates:
        options["covariates"] = confounds = rng.normal(size=(rows, covariates))
        x, y = (view + confounds @ rng.normal(size=(covariates, view.shape[1])) for view in (x, y))
    return x, y, options


def p_values(
    seed: int,
    gamma: float | str,
    n_components: int = 3,
    use_options: bool = True,
    n_permutations: int = PERMUTATIONS,
    method: str | None = None,
    statistic: str = "roy",
    **settings,
):
    """Return the p-values of the first components of one simulated data set."""
    from diptych import AWCCA
    from diptych.stats import permutation_test

    x, y, options = simulate(seed, **settings)
    model = (gamma, gamma)
    if isinstance(gamma, str):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = AWCCA(selection=gamma, verbose=False).fit(x, y)
    test = permutation_test(
        model,
        x,
        y,
        n_permutations=n_permutations,
        n_components=n_components,
        random_state=seed,
        method=method,
        statistic=statistic,
        verbose=False,
        **(options if use_options else {}),
    )
    return test.p_values


def all_p_values(seed: int, gamma: float, **settings):
    """Return the p-values of the first two components by each test of ``NAMES``."""
    from cca_zoo.linear import RidgeCCA
    from cca_zoo.model_selection import permutation_test_significance

    x, y, _ = simulate(seed, **settings)
    shrinkage = gamma / (gamma + len(x) - 1)
    other = permutation_test_significance(
        RidgeCCA(n_components=2, shrinkage=shrinkage),
        [x, y],
        n_permutations=FEWER_PERMUTATIONS,
        random_state=seed,
    )
    options = {"n_permutations": FEWER_PERMUTATIONS} | settings
    own = [
        p_values(seed, gamma, 2, method=method, statistic=statistic, **options)
        for statistic in STATISTICS
        for method in (None, "stepwise")
    ]
    # The first component is tested stepwise as it is otherwise.
    return np.concatenate([own[0], own[1][1:], own[2], own[3][1:], other.p_values])


CASES = {
    "unrelated, γ = 5": {"gamma": 5.0},
    "unrelated, γ = 50": {"gamma": 50.0},
    "unrelated, γ = 500": {"gamma": 500.0},
    "unrelated, t3 noise, γ = 50": {"gamma": 50.0, "tails": True},
    "unrelated, 40 × (8 + 8) features, γ = 0": {"gamma": 0.0, "rows": 40, "features": (8, 8)},
    "unrelated, γ by Ledoit-Wolf": {"gamma": "ledoit-wolf"},
    "unrelated, γ by leave-one-out on the same pairs": {"gamma": "leave-one-out"},
    "unrelated within 6 subjects, blocks, γ = 50": {"gamma": 50.0, "subjects": 6},
    "unrelated within 6 subjects, without blocks, γ = 50": {
        "gamma": 50.0,
        "subjects": 6,
        "use_options": False,
    },
    "first real (weak), γ = 50": {"gamma": 50.0, "signals": (1.5,)},
    "first real (medium), γ = 50": {"gamma": 50.0, "signals": (3.0,)},
    "first real (strong), γ = 50": {"gamma": 50.0, "signals": (10.0,)},
    "first two real, γ = 50": {"gamma": 50.0, "signals": (6.0, 3.0)},
    "first real within 6 subjects, blocks, γ = 50": {"gamma": 50.0, "signals": (6.0,), "subjects": 6},
    "first real, rows of unequal scale, γ = 50": {"gamma": 50.0, "signals": (10.0,), "scales": True},
    "first real, rows of unequal scale, 100 × (8 + 8) features, γ = 0": {
        "gamma": 0.0,
        "rows": 100,
        "features": (8, 8),
        "signals": (10.0,),
        "scales": True,
    },
    "unrelated, rows of unequal scale, γ = 50": {"gamma": 50.0, "scales": True},
    "unrelated, 10 covariates, 40 pairs, γ = 50": {"gamma": 50.0, "rows": 40, "covariates": 10},
    "first two real, 10 covariates, 40 pairs, γ = 50": {
        "gamma": 50.0,
        "rows": 40,
        "covariates": 10,
        "signals": (6.0, 3.0),
    },
    "unrelated time series, shift, 120 × (3 + 3) features, γ = 0": {
        "gamma": 0.0,
        "rows": 120,
        "features": (3, 3),
        "serial": True,
    },
    "unrelated, Wilks, γ = 50": {"gamma": 50.0, "statistic": "wilks"},
    "first real (strong), Wilks, γ = 50": {"gamma": 50.0, "statistic": "wilks", "signals": (10.0,)},
}


def calibrate(quick: bool) -> None:
    """Measure how p-values are distributed where there is nothing to find."""
    from scipy.stats import kstest

    sets, rows, pool = 100 if quick else 1000, [], start_pool()
    for number, (name, settings) in enumerate(CASES.items()):
        values = np.array(repeat(pool, partial(p_values, **settings), sets, first=1000 * number))
        row: dict[str, object] = {"data": name}
        for at in range(3):
            own = values[:, at]
            row[f"p{at + 1} ≤ 0.05"] = f"{np.mean(own <= LEVEL):.1%}"
            row[f"KS {at + 1}"] = f"{kstest(own, 'uniform').pvalue:.3f}"
        # A false discovery: all components before it, and one that is due to chance, are significant.
        real = len(settings.get("signals", ()))
        row["any false, corrected"] = f"{np.mean(values[:, : real + 1].max(axis=1) <= LEVEL):.1%}"
        rows.append(row)
        print(row, flush=True)
    pool.shutdown()
    error = 1.96 * np.sqrt(LEVEL * (1 - LEVEL) / sets)
    record(
        "permutation_calibrate",
        rows,
        f"{sets} data sets each, of {ROWS} pairs with {X_FEATURES} + {Y_FEATURES} features unless said "
        f"otherwise, {PERMUTATIONS} permutations. Binomial error of a rate of 5 %: ± {error:.1%}. KS: "
        "p-value of the Kolmogorov-Smirnov test that the p-values are uniform; components that are real "
        "are not under the null hypothesis, and their p-values should be small. Any false: data sets in "
        "which a component that is due to chance has a corrected p-value of 0.05 or less.",
    )


COVARIATES = 10
SHAPES = {
    "80 × (200 + 30), γ = 50": {"rows": 80, "features": (200, 30), "gamma": 50.0},
    "40 × (10 + 8), γ = 0": {"rows": 40, "features": (10, 8), "gamma": 0.0},
}
WAYS = {
    "covariates=": {"way": "projected"},
    "covariates=, t3 noise": {"way": "projected", "tails": True},
    "regressed out beforehand": {"way": "beforehand"},
    "ignored": {"way": "ignored"},
}


def covariate_results(
    seed: int, way: str, gamma: float, rows: int, features: tuple[int, int], tails: bool = False
):
    """Return p-values of the first two components, of Wilks' test, and the first held-out correlation."""
    from diptych import InputError
    from diptych.stats import classical_tests, cross_validated_correlations, permutation_test

    x, y, options = simulate(seed, (), rows, features, tails, covariates=COVARIATES)
    covariates = options["covariates"]
    if way == "beforehand":
        design = np.column_stack([np.ones(rows), covariates])
        x, y = (view - design @ np.linalg.lstsq(design, view)[0] for view in (x, y))
    options = options if way == "projected" else {}
    test = permutation_test(
        (gamma, gamma),
        x,
        y,
        n_permutations=FEWER_PERMUTATIONS,
        n_components=2,
        random_state=seed,
        verbose=False,
        **options,
    )
    held_out = cross_validated_correlations((gamma, gamma), x, y, n_components=1, verbose=False, **options)
    try:
        wilks = classical_tests(x, y, **options).wilks.p_values[0]
    except InputError:  # too few pairs
        wilks = np.nan
    return [*test.p_values, wilks, held_out.mean[0]]


def calibrate_covariates(quick: bool) -> None:
    """Measure p-values and held-out correlations of unrelated views that depend on the same covariates."""
    from scipy.stats import kstest

    sets, rows, pool = 60 if quick else 600, [], start_pool()
    for shape, sizes in SHAPES.items():
        for way, settings in WAYS.items():
            values = np.array(repeat(pool, partial(covariate_results, **settings, **sizes), sets))
            rejected = np.mean(values[:, :3] <= LEVEL, axis=0)
            row = {
                "data": shape,
                "covariates": way,
                "p1 ≤ 0.05": f"{rejected[0]:.1%}",
                "KS 1": f"{kstest(values[:, 0], 'uniform').pvalue:.3f}",
                "p2 ≤ 0.05": f"{rejected[1]:.1%}",
                "Wilks ≤ 0.05": "" if np.isnan(values[0, 2]) else f"{rejected[2]:.1%}",
                "held-out": f"{np.mean(values[:, 3]):.3f}",
            }
            rows.append(row)
            print(row, flush=True)
    pool.shutdown()
    error = 1.96 * np.sqrt(LEVEL * (1 - LEVEL) / sets)
    record(
        "permutation_covariates",
        rows,
        f"{sets} data sets each, the same in each row but for the noise, {FEWER_PERMUTATIONS} permutations. "
        f"Both views depend on {COVARIATES} covariates, and on nothing else in common. Binomial error of a "
        f"rate of 5 %: ± {error:.1%}. KS: p-value of the Kolmogorov-Smirnov test that the p-values are "
        "uniform. Held-out: mean of the first cross-validated correlation, which should be 0.",
    )


STATISTICS = {"roy": "", "wilks": ", Wilks"}
NAMES = [
    f"component {part}{statistic}" for statistic in STATISTICS.values() for part in ("1", "2", "2, stepwise")
]
NAMES += ["component 1, cca-zoo", "component 2, cca-zoo"]
STRENGTHS = (0.0, 1.0, 1.5, 2.0, 3.0)
WEAK = (1.0,) * 6


def measure_power(quick: bool) -> None:
    """Measure how often the first two components are found, beside other tests."""
    sets, rows, rates, pool = 20 if quick else 150, [], {}, start_pool()
    for decay in (0.0, 1.0):
        for signals in [*((s,) for s in STRENGTHS), *((4.0, s) for s in STRENGTHS[1:]), WEAK]:
            function = partial(all_p_values, gamma=50.0, signals=signals, decay=decay)
            found = np.mean(np.array(repeat(pool, function, sets)) <= LEVEL, axis=0)
            label = "six of 1" if signals == WEAK else " and ".join(f"{s:g}" for s in signals)
            row = {"signals": f"{label}, decaying" if decay else label}
            rows.append(row | {name: f"{rate:.1%}" for name, rate in zip(NAMES, found, strict=True)})
            print(rows[-1], flush=True)
            if not decay and signals != WEAK:
                rates[signals] = found
    pool.shutdown()
    record(
        "permutation_power",
        rows,
        f"Share of {sets} data sets with p ≤ 0.05, {ROWS} pairs with {X_FEATURES} + {Y_FEATURES} features, "
        f"γ = 50, {FEWER_PERMUTATIONS} permutations. A signal s adds s times the same normal variable to one "
        "feature of each view, whose noise has the variance 1. Decaying: feature j is then divided by j, and "
        "all by the root mean square of 1/j. With one signal, the second component is due to chance, and its "
        "rate should be 5 %.",
    )
    draw_power(rates)


def draw_power(rates: dict[tuple[float, ...], np.ndarray]) -> None:
    """Draw rejection rates against the strength of a signal: the only one, and the second of two."""
    figure, panels = start_figure(1, 2, size=(8.4, 3.4))
    one = {signals[0]: own for signals, own in rates.items() if len(signals) == 1}
    two = {signals[1]: own for signals, own in rates.items() if len(signals) == 2}
    zoo = len(NAMES) - 2
    shown = (
        (one, (0, zoo, 1, zoo + 1), "one signal"),
        (two, (1, zoo + 1), "a strong signal (4) and a second one"),
    )
    for axes, (lines, numbers, title) in zip(np.ravel(panels), shown, strict=True):
        for number in numbers:
            axes.plot(
                list(lines),
                [100 * own[number] for own in lines.values()],
                color="#0072B2" if number < zoo else "#D55E00",
                linestyle="-" if number % 2 == 0 else "--",
                marker="o" if number < zoo else "s",
                label=f"{NAMES[number % 2]}, {'diptych' if number < zoo else 'cca-zoo'}",
            )
        axes.axhline(100 * LEVEL, color="0.5", linewidth=0.8)
        axes.set(xlabel="strength of the signal", ylim=(-3, 103), title=title)
        axes.legend(fontsize=8, frameon=False)
    np.ravel(panels)[0].set_ylabel("data sets with p ≤ 0.05 (%)")
    figure.savefig(RESULTS / "permutation_power.svg", metadata={"Date": None})


def start_pool() -> ProcessPoolExecutor:
    """Return two processes, each with one thread."""
    return ProcessPoolExecutor(2, get_context("spawn"))


def repeat(pool: ProcessPoolExecutor, function, sets: int, first: int = 0) -> list:
    """Return ``function(seed)`` for so many seeds."""
    return list(pool.map(function, range(first, first + sets), chunksize=max(1, sets // 20)))


def measure_speed(quick: bool) -> None:
    """Measure 1,000 permutations beside cca-zoo's, and compare the correlations under some of them."""
    from cca_zoo.linear import RidgeCCA
    from cca_zoo.model_selection import permutation_test_significance
    from joblib import parallel_config
    from sklearn.utils import check_random_state

    from diptych.stats import permutation_test
    from diptych.stats._chains import largest_squares
    from diptych.stats._pairs import prepare_pairs
    from diptych.stats._permutation import _whiten_pairs

    n, features, shrinkage, permutations = 300, 2000, 0.5, 100 if quick else 1000
    x, y, _ = simulate(0, (2.0,), n, (features, features))
    gamma = (n - 1) * shrinkage / (1 - shrinkage)

    covariates = np.random.default_rng(1).normal(size=(n, COVARIATES))

    def test(components: int, **options):
        settings = {"n_permutations": permutations, "n_components": components, "verbose": False}
        return permutation_test((gamma, gamma), x, y, **settings, **options)

    def test_zoo(components: int, permutations: int = permutations):
        model = RidgeCCA(n_components=components, shrinkage=shrinkage)
        # Two processes with one thread each take less time than one with two threads.
        with parallel_config("loky", inner_max_num_threads=1):
            return permutation_test_significance(
                model, [x, y], n_permutations=permutations, random_state=0, n_jobs=2
            )

    test(1), test_zoo(1, 2)  # imports, and cca-zoo's processes
    rows = []
    for components in (1, 3):
        own = measure_fastest(lambda: test(components), 3)  # noqa: B023
        partial_seconds = measure_fastest(lambda: test(components, covariates=covariates), 3)  # noqa: B023
        other, _ = time_call(lambda: test_zoo(components))  # noqa: B023
        rows.append(
            {
                "components": components,
                "diptych (s)": round(own, 2),
                f"with {COVARIATES} covariates (s)": round(partial_seconds, 2),
                "cca-zoo (s)": round(other, 1),
                "times as fast": round(other / own),
            }
        )
        print(rows[-1], flush=True)
    # cca-zoo permutes the rows of Y, which is the inverse permutation of those of X.
    seeds = check_random_state(0).randint(np.iinfo(np.int32).max, size=permutations)[:5]
    orders = [np.random.default_rng(seed).permutation(n) for seed in seeds]
    whitened = _whiten_pairs(prepare_pairs((gamma, gamma), x, y, None, "search"), None)
    ours = np.sqrt(largest_squares(whitened.a, whitened.b, np.argsort(orders, axis=1)))
    theirs = [ridge_correlation(x, y[order], gamma, shrinkage) for order in orders]
    difference = np.max(np.abs(ours - theirs))
    assert difference < 1e-8, difference
    record(
        "permutation_speed",
        rows,
        f"{permutations:,} permutations of {n} pairs with {features:,} + {features:,} features, two threads; "
        "cca-zoo in two processes with one thread each. "
        f"Under the same {len(orders)} permutations, the first regularised correlations of both differ by "
        f"{difference:.0e} at most. cca-zoo's later components are not tested with the earlier ones removed.",
    )


def ridge_correlation(x, y, gamma: float, shrinkage: float) -> float:
    """Return the first regularised correlation of cca-zoo's model."""
    from cca_zoo.linear import RidgeCCA

    x, y = x - x.mean(0), y - y.mean(0)
    u, v = (weights[:, 0] for weights in RidgeCCA(shrinkage=shrinkage).fit([x, y]).weights_)
    lengths = [np.sum((view @ own) ** 2) + gamma * own @ own for view, own in ((x, u), (y, v))]
    return abs((x @ u) @ (y @ v)) / np.sqrt(lengths[0] * lengths[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("calibrate", "covariates", "power", "speed"))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.what in ("power", "speed"):
        require("cca_zoo", "pip install cca-zoo")
        require("matplotlib", "pip install matplotlib")
    {
        "calibrate": calibrate,
        "covariates": calibrate_covariates,
        "power": measure_power,
        "speed": measure_speed,
    }[arguments.what](arguments.quick)
