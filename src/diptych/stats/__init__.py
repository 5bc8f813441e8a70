"""Statistics of canonical correlations: tests, intervals and loadings."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.stats._bootstrap import Bootstrap, Interval, bootstrap
    from diptych.stats._classical import ClassicalTests, classical_tests
    from diptych.stats._cross_validation import CrossValidatedCorrelations, cross_validated_correlations
    from diptych.stats._loadings import Loadings, loadings
    from diptych.stats._permutation import PermutationTest, permutation_test
    from diptych.stats._view_permutation import permutation_test_views

__all__ = [
    "Bootstrap",
    "ClassicalTests",
    "CrossValidatedCorrelations",
    "Interval",
    "Loadings",
    "PermutationTest",
    "bootstrap",
    "classical_tests",
    "cross_validated_correlations",
    "loadings",
    "permutation_test",
    "permutation_test_views",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_bootstrap": ["Bootstrap", "Interval", "bootstrap"],
        "_classical": ["ClassicalTests", "classical_tests"],
        "_cross_validation": ["CrossValidatedCorrelations", "cross_validated_correlations"],
        "_loadings": ["Loadings", "loadings"],
        "_permutation": ["PermutationTest", "permutation_test"],
        "_view_permutation": ["permutation_test_views"],
    },
)
