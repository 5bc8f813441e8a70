"""Classical tests of canonical correlations: Wilks, Pillai, Hotelling-Lawley and Roy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._arrays import Floats, to_numpy
from diptych._checks import InputError, check_pair_of_views, count, second_view
from diptych.cca import Tikhonov, regularized_cca, spectra
from diptych.cca._covariates import check_covariates, regress_out
from diptych.stats._tables import format_number, format_p, format_table, import_pandas


@dataclass(frozen=True, eq=False)
class FTest:
    """One statistic and its F approximation; each attribute has one entry for each hypothesis.

    Attributes
    ----------
    statistic, f, p_values
        The statistic, its F value, and the p-value of that.
    df_numerator, df_denominator
        The degrees of freedom of F.
    """

    statistic: Floats
    f: Floats
    df_numerator: Floats
    df_denominator: Floats
    p_values: Floats


@dataclass(frozen=True, eq=False)
class ClassicalTests:
    """Tests of the canonical correlations of two views; entry k is the hypothesis that k and after are 0.

    ``print`` shows a table, and ``to_frame`` returns one.

    Attributes
    ----------
    correlations
        Canonical correlations, descending.
    wilks, pillai, hotelling_lawley, roy
        The tests, each with ``statistic``, ``f``, ``df_numerator``, ``df_denominator`` and ``p_values``. The
        F of Roy's is an upper bound, so its p-value is a lower bound, except for the last hypothesis.
    count
        Number of pairs.
    rank_x, rank_y
        Number of features of each view that are not combinations of others.
    n_covariates
        Number of covariates that are neither constant nor combinations of others.
    """

    correlations: Floats
    wilks: FTest
    pillai: FTest
    hotelling_lawley: FTest
    roy: FTest
    count: int
    rank_x: int
    rank_y: int
    n_covariates: int = 0

    def __str__(self) -> str:
        header = ["all zero", "correlation", "statistic", "value", "F", "df1", "df2", "p"]
        last = len(self.correlations)
        cells = []
        for k, name, statistic, f, df1, df2, p in self._rows():
            first = [f"{k} to {last}" if k < last else str(k), f"{self.correlations[k - 1]:.4f}"]
            numbers = [f"{statistic:.4f}", f"{f:.2f}", format_number(df1), format_number(df2), format_p(p)]
            cells.append([*(first if name == "Wilks" else ["", ""]), name, *numbers])
        removed = f" without {count(self.n_covariates, 'covariate')}" if self.n_covariates else ""
        return (
            f"Classical tests, {self.count} pairs, {self.rank_x} and {self.rank_y} features{removed}\n"
            f"{format_table(header, cells)}\n"
            "The F of Roy's root is an upper bound, its p a lower bound."
        )

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each hypothesis and statistic."""
        rows = [(k, name, self.correlations[k - 1], *numbers) for k, name, *numbers in self._rows()]
        columns = ["component", "test", "correlation", "statistic", "F", "df1", "df2", "p"]
        return import_pandas().DataFrame(rows, columns=columns).set_index(["component", "test"])

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        tests = (self.wilks, self.pillai, self.hotelling_lawley, self.roy)
        for k in range(len(self.correlations)):
            for name, test in zip(("Wilks", "Pillai", "Hotelling-Lawley", "Roy"), tests, strict=True):
                yield k + 1, name, *(values[k] for values in vars(test).values())


def classical_tests(X: Any, y: Any, pairing: Any = None, *, covariates: Any = None) -> ClassicalTests:
    r"""Test the canonical correlations of two views without regularisation, assuming normal errors.

    For each k the hypothesis is that the correlations :math:`\rho_k, \rho_{k+1}, \dots` are all 0:

    .. math:: \Lambda = \prod_i (1-\rho_i^2), \quad V = \sum_i \rho_i^2, \quad
              U = \sum_i \frac{\rho_i^2}{1-\rho_i^2}, \quad \Theta = \frac{\rho_k^2}{1-\rho_k^2}

    (Wilks, Pillai, Hotelling-Lawley, Roy) with the F approximations of Rao, Pillai and McKeon; Roy's F is an
    upper bound. All four are exact for a single remaining correlation, Wilks' also for two. Later hypotheses
    are tested as if the correlations before k were known.

    The pairs must be independent and more than the features of both views together, plus one. If they are
    not, use ``permutation_test``. A feature that is a combination of others adds nothing, and does not count.

    Parameters
    ----------
    X, y
        The two views, rows × features.
    pairing
        Row j of y belongs to row ``pairing[j]`` of X, at most one to each; None pairs row with row.
    covariates
        Age, motion and the like, rows of X × covariates: the correlations are partial ones, of what a
        regression on the covariates leaves of both views, and each independent covariate takes one degree of
        freedom (Timm and Carlson, 1976). To regress them out beforehand would not, and rejects too often.
        Those of one view alone have no such tests.

    References
    ----------
    Rao (1973), "Linear Statistical Inference and Its Applications", section 8c; Muller and Peterson (1984),
    "Practical methods for computing power in testing the multivariate general linear hypothesis"; Timm and
    Carlson (1976), "Part and bipartial canonical correlation analysis".

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych.stats import classical_tests
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> tests = classical_tests(physiology, exercises)
    >>> tests.correlations.round(4)
    array([0.7956, 0.2006, 0.0726])
    >>> print(f"{tests.wilks.statistic[0]:.4f} {tests.wilks.f[0]:.2f} {tests.wilks.p_values[0]:.4f}")
    0.3504 2.05 0.0635
    """
    x, y, pairing = check_pair_of_views(X, second_view(y), pairing)
    owners = to_numpy(pairing)
    if len(np.unique(owners)) < len(owners):
        raise InputError(
            "several rows of Y belong to one row of X, so the pairs are not independent, as these tests "
            "assume; use permutation_test, which moves them together."
        )
    sides, n_covariates = check_covariates(covariates, X, int(x.shape[0])), 0
    if sides is not None:
        if sides[0] is not sides[1]:
            raise InputError(
                "these tests take the same covariates for both views; use permutation_test for those of one."
            )
        regressions, (x, y) = regress_out(x, y, pairing, sides)
        n_covariates = regressions.n_shared
    of_pairs = spectra(x, y, pairing)
    n, (p, q) = of_pairs.count, of_pairs.ranks
    if n - n_covariates < p + q + 2:
        without = f" without {count(n_covariates, 'covariate')}" if n_covariates else ""
        raise InputError(
            f"{n} pairs are too few for classical tests of {p} and {q} features{without}; give at least "
            f"{p + q + 2 + n_covariates} pairs, or use permutation_test with a regularised model."
        )
    model = regularized_cca(of_pairs, Tikhonov(0.0), Tikhonov(0.0), min(p, q))
    rho = np.minimum(to_numpy(model.correlations), 1.0)
    return ClassicalTests(rho, *_f_tests(rho**2, n - n_covariates, p, q), n, p, q, n_covariates)


def _f_tests(squares: Floats, n: int, p: int, q: int) -> tuple[FTest, FTest, FTest, FTest]:
    """Return the tests of Wilks, Pillai, Hotelling-Lawley and Roy from squared correlations, descending.

    Without the first k components both views have k features less, and there are k pairs less.
    """
    from scipy.stats import f as f_distribution

    def test(statistic: Floats, f: Floats, df1: Floats, df2: Floats) -> FTest:
        return FTest(statistic, f, df1, df2, f_distribution.sf(f, df1, df2))

    def sum_from(values: Floats) -> Floats:
        return np.cumsum(values[::-1])[::-1]

    removed = np.arange(len(squares), dtype=np.float64)
    p_k, q_k, df1 = p - removed, q - removed, (p - removed) * (q - removed)
    s = np.minimum(p_k, q_k)
    spare = (n - p - q - 2 + removed) / 2  # (v − p − 1)/2 with v degrees of freedom of the residuals
    with np.errstate(divide="ignore", over="ignore"):  # correlations of 1 have infinite F
        ratios = squares / (1.0 - squares)
        wilks = np.exp(sum_from(np.log1p(-squares)))
        sides = p_k**2 + q_k**2 - 5
        t = np.sqrt(np.where(sides > 0, (df1**2 - 4) / np.where(sides > 0, sides, 1.0), 1.0))
        df2 = (n - 1 - (p + q + 1) / 2) * t - (df1 - 2) / 2
        by_wilks = test(wilks, (wilks ** (-1 / t) - 1) * df2 / df1, df1, df2)

        pillai = sum_from(squares)
        df2 = s * (2 * spare + s + 1)
        by_pillai = test(pillai, df2 / df1 * pillai / (s - pillai), df1, df2)

        trace = sum_from(ratios)
        # McKeon's approximation, where 1/(b − 1) is finite also at b = ∞; without spare, that of Pillai.
        spread = 2 * (2 * spare + 1) * (spare - 1)
        mckeon = 4 + (df1 + 2) * spread / ((p_k + 2 * spare) * (q_k + 2 * spare) - spread)
        has_spare = spare > 0
        df2 = np.where(has_spare, mckeon, s * (s * spare + 1))
        scale = np.where(has_spare, (mckeon - 2) / np.where(has_spare, 2 * spare, 1.0), s)
        by_trace = test(trace, df2 / df1 * trace / scale, df1, df2)

        largest = np.maximum(p_k, q_k)
        df2 = n - 1.0 - np.maximum(p, q) + 0 * removed
        by_roy = test(ratios, df2 / largest * ratios, largest, df2)
    return by_wilks, by_pillai, by_trace, by_roy
