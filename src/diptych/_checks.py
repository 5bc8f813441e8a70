"""Checks of user input, and the errors and warnings of the package.

NumPy is imported where an array is checked, so that the command line has the rest without it.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

if TYPE_CHECKING:
    from diptych._arrays import Array

Task: TypeAlias = Literal["search", "annotate"]
Similarity: TypeAlias = Literal["cosine", "l2"]

TASKS: tuple[Task, ...] = ("search", "annotate")
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "l2")

SEARCHED_VIEW: dict[Task, Literal["x", "y"]] = {"search": "x", "annotate": "y"}
"""The view whose items a task searches: images X for a text, texts Y for an image."""

QUERY_VIEW: dict[Task, Literal["x", "y"]] = {"search": "y", "annotate": "x"}
"""The view of a task's queries."""


class InputError(ValueError):
    """Wrong input; the message says in one line what happened, what was expected and what to do.

    Examples
    --------
    >>> from diptych import AWCCA, InputError
    >>> try:
    ...     AWCCA(grid=0).fit([[1.0], [2.0]], [[1.0], [2.0]])
    ... except InputError as error:
    ...     print(str(error)[:40])
    grid=0 is not a number of points; give 1
    """

    def __init__(self, message: object = "") -> None:
        # Messages of other libraries, quoted in ours, may have line breaks.
        super().__init__(" ".join(line.strip() for line in str(message).splitlines() if line.strip()))


class UnavailableError(InputError):
    """What is shared with other processes cannot be reached now; it may be later."""


class NotFiniteError(InputError):
    """A view contains NaN or infinity."""


class NotNumbersError(InputError, TypeError):
    """A view contains objects that are no numbers, which scikit-learn reports as a ``TypeError``."""


class DataWarning(UserWarning):
    """The data or the settings may give poor results; the message says why and what to do."""


FEW_PAIRS = 50
"""With fewer training pairs, what is selected is mostly chance; a fit warns, and the model card says so."""

MAX_NAME = 30
"""Letters of the name of a view."""


_MASS_NOUNS = ("audio", "data", "footage", "music", "speech")
_OWN_PLURALS = ("fish", "series", "species")


def plural(noun: str) -> str:
    """Return the plural of a noun; what cannot be counted is counted in items.

    >>> plural("image"), plural("query"), plural("sketch"), plural("time series"), plural("audio")
    ('images', 'queries', 'sketches', 'time series', 'audio items')
    """
    if noun.endswith(_OWN_PLURALS):
        return noun
    noun = _countable(noun)
    if noun[-1] == "y" and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def count(n: int, noun: str) -> str:
    """Return ``n`` with its noun, singular or plural, for messages.

    >>> count(1, "image"), count(1200, "image"), count(2, "query"), count(1, "audio")
    ('1 image', '1,200 images', '2 queries', '1 audio item')
    """
    return f"{n:,} {_countable(noun) if n == 1 else plural(noun)}"


def with_article(noun: str) -> str:
    """Return a noun with "a" or "an".

    >>> with_article("image"), with_article("molecule"), with_article("audio")
    ('an image', 'a molecule', 'an audio item')
    """
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {_countable(noun)}"


def _countable(noun: str) -> str:
    return f"{noun} item" if noun.rpartition(" ")[2] in _MASS_NOUNS else noun


class ViewNames(NamedTuple):
    """What people call the items of the two views; messages use these names.

    The library itself calls the views "image" and "text" whatever they hold: in ``item.view``, in model
    folders and over HTTP.
    """

    image: str = "image"
    text: str = "text"

    @property
    def caption(self) -> str:
        """The name of a text that belongs to an item of the first view."""
        return "caption" if self.text == "text" else self.text

    def of(self, view: Literal["image", "text"]) -> str:
        """Return the name of a view."""
        return self.image if view == "image" else self.text


IMAGE_AND_TEXT = ViewNames()


def check_view_names(views: object) -> ViewNames:
    """Return the names of two views: two different short words.

    >>> check_view_names(("audio", "text")).image
    'audio'
    """
    names = tuple(views) if isinstance(views, list | tuple) else ()
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise InputError(f'views={views!r} is not a pair of names; give two, such as ("audio", "text").')
    for name in names:
        if not re.fullmatch(r"[^\W\d_]+([ -][^\W\d_]+)*", name) or len(name) > MAX_NAME:
            raise InputError(
                f"the name {name[:40]!r} of a view is not a plain word; give a noun in the singular, of at "
                f'most {MAX_NAME} letters, such as "audio" or "time series".'
            )
    if names[0] == names[1]:
        raise InputError(f"both views are called {names[0]!r}; give each a name of its own.")
    return ViewNames(*names)


def missing_package_error(what: str, extra: str = "", package: str = "") -> InputError:
    """Return the error for missing packages of an optional extra, with the command that installs them.

    ``what`` starts the message ("HDF5 files need"); ``package`` is the one package that is needed, if not
    all.
    """
    from importlib import metadata

    try:
        lines = metadata.requires("diptych") or []
    except metadata.PackageNotFoundError:  # run from a folder of sources, without an installation
        lines = []
    needed = [line.partition(";")[0].strip() for line in lines if re.search(rf"extra == .{extra}\b", line)]
    needed = [requirement for requirement in needed if requirement.startswith(package)]
    names = [re.match(r"[\w.-]+", requirement).group() for requirement in needed]  # type: ignore[union-attr]
    quoted = " ".join(f'"{requirement}"' for requirement in needed) or package or extra
    listed = " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
    return InputError(f"{what} {listed or package or extra}; install with: pip install {quoted}")


def import_package(name: str, what: str, extra: str = "", package: str = "") -> Any:
    """Import a module of an optional package; if it is not installed, say how to install it.

    The other arguments are those of ``missing_package_error``. A package that is installed but cannot be
    imported, such as a torchvision that was built for another torch, is another ``InputError``.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package may fail in any way
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing and missing.partition(".")[0] == name.partition(".")[0]:
            raise missing_package_error(what, extra, package) from None
        cause: BaseException = error
        while cause.__cause__ or cause.__context__:
            cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
        raise InputError(
            f"{name} is installed but cannot be imported ({type(cause).__name__}: {cause}); reinstall it "
            "together with what it needs, from the same source, so that their versions match."
        ) from None


def check_choice(value: object, choices: tuple[str, ...], name: str) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        raise InputError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}.")
    return str(value)


def check_task(task: object) -> Task:
    """Return ``task`` if it is one."""
    return cast(Task, check_choice(task, TASKS, "task"))


def check_similarity(similarity: object) -> Similarity:
    """Return ``similarity`` if it is one."""
    return cast(Similarity, check_choice(similarity, SIMILARITIES, "similarity"))


def check_count(count: object, name: str, minimum: int = 1) -> int:
    """Return ``count`` if it is a whole number of at least ``minimum``."""
    if isinstance(count, Integral) and not isinstance(count, bool) and int(count) >= minimum:
        return int(count)
    raise InputError(f"{name}={count!r}; give a whole number of at least {minimum}.")


def check_number(value: object, name: str) -> float:
    """Return ``value`` as a float."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give a number.") from None


def check_seed(random_state: object) -> int | None:
    """Return ``random_state`` if it can seed a generator: a whole number of at least 0, or None."""
    return None if random_state is None else check_count(random_state, "random_state", minimum=0)


def is_unicode(text: str) -> bool:
    """Return whether ``text`` can be written as UTF-8; an unpaired surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_matrix(view: Any, name: str = "X", *, n_features: int | None = None, sparse: bool = False) -> Array:
    """Return ``view`` as a matrix with rows and columns; its entries are not checked. Lists become NumPy.

    Sparse ones are refused, or become ``csr_array`` of SciPy if ``sparse``.
    """
    import numpy as np
    from array_api_compat import is_array_api_obj

    from diptych._arrays import is_sparse

    if is_sparse(view) and sparse:
        view = _as_csr(view)
    elif is_sparse(view) or str(getattr(view, "layout", "torch.strided")) != "torch.strided":
        dense = "toarray" if is_sparse(view) else "to_dense"
        raise InputError(f"{name} is a sparse matrix; give a dense array, for example {name}.{dense}().")
    columns = check_column_names(view, name)
    # There is no masked array unless somebody has imported its module.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(view, masked):
        raise InputError(
            f"{name} is a masked array, whose mask would be ignored; fill the masked values "
            f"({name}.filled(...)) or leave those rows out."
        )
    if not is_sparse(view) and not is_array_api_obj(view):
        try:
            view = np.asarray(view)
        except ValueError as error:
            raise InputError(f"{name} could not be read as an array: {error}.") from None
        if view.dtype == object:
            view = np.where(are_missing(view), np.nan, view)  # pandas has missing values that are no floats
        if columns is not None and view.ndim == 2:
            _check_number_columns(view, columns, name)
    if view.ndim != 2:
        raise InputError(
            f"{name} has {view.ndim} dimension(s); expected 2 (rows are items, columns are features). "
            "Reshape your data with array.reshape(-1, 1) if it has one feature or "
            "array.reshape(1, -1) if it is one item."
        )
    if view.shape[0] == 0:
        raise InputError(
            f"{name} is empty: found 0 sample(s) (shape={tuple(view.shape)}); give at least one."
        )
    if view.shape[1] == 0:
        raise InputError(
            f"{name} has 0 feature(s) (shape={tuple(view.shape)}) while a minimum of 1 is required; "
            "give at least one column."
        )
    if n_features is not None and view.shape[1] != n_features:
        raise InputError(
            f"{name} has {view.shape[1]} features, but is expecting {n_features} features as input: "
            "give the same features as in fit."
        )
    return view


def check_column_names(view: Any, name: str) -> list[Any] | None:
    """Return the names of the columns of a data frame, which must differ; None for any other view."""
    columns = getattr(view, "columns", None)
    if columns is None:
        return None
    names = list(columns)
    if len(set(names)) < len(names):
        repeated = next(label for label in names if names.count(label) > 1)
        raise InputError(
            f"{name} has {names.count(repeated)} columns called {repeated!r}; give each column a "
            "name that no other has."
        )
    return names


def _check_number_columns(matrix: Any, columns: list[Any], name: str) -> None:
    """Raise an error that names the first column of a data frame, as a matrix, that has no numbers."""
    import numpy as np

    if matrix.dtype.kind not in "OUSmM":
        return
    for place, label in enumerate(columns):
        values = matrix[:, place]
        try:
            if matrix.dtype.kind not in "mM":
                values.astype(np.float64)
                continue
        except (TypeError, ValueError):
            pass
        value = next((value for value in values if not _is_number(value)), values[0])
        raise NotNumbersError(
            f"{name} has values that are not numbers in the column {label!r}, such as {value!r}; encode them "
            "as numbers (sklearn.preprocessing.OneHotEncoder), or leave the column out."
        )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def are_missing(values: Any) -> Any:
    """Return where an array of NumPy has missing values, infinity among them."""
    import numpy as np

    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind == "f":
        return ~np.isfinite(values)
    if values.dtype != object:
        return np.zeros(values.shape, dtype=bool)
    if (isna := getattr(sys.modules.get("pandas"), "isna", None)) is not None:
        return isna(values)
    return np.asarray([value is None or value != value for value in values.flat]).reshape(values.shape)


def _as_csr(view: Any) -> Any:
    from scipy.sparse import csr_array

    rows = csr_array(view)
    if rows.ndim == 2 and not rows.has_canonical_format:
        rows = rows.copy()  # the caller's own must not change
        rows.sum_duplicates()
    return rows


def check_view(view: Any, name: str = "X", *, n_features: int | None = None, sparse: bool = False) -> Array:
    """Return ``view`` as a real floating-point matrix with finite entries.

    float32 and float64 arrays of any backend pass through without a copy; float16 becomes float32
    and integers float64. Lists and data frames become NumPy. ``sparse`` is as in ``check_matrix``.

    Missing values are refused. Sums over the pairs that each two columns share need not be the Gram matrices
    of any data (correlations above 1), and rows that are left out silently change the sample.
    """
    from diptych._arrays import is_sparse, replace_entries

    columns = getattr(view, "columns", None)
    view = check_matrix(view, name, n_features=n_features, sparse=sparse)
    if is_sparse(view):
        entries = _as_real_float(view.data, name)
        view = view if entries is view.data else replace_entries(view, entries)
    else:
        view = _as_real_float(view, name)
    if not _all_finite(view.data[:, None] if is_sparse(view) else view):
        raise NotFiniteError(_describe_missing(view, name, columns))
    return view


def second_view(Y: Any) -> Any:
    """Return Y as a matrix: a Y of one axis is one feature. A data frame keeps the names of its columns."""
    import numpy as np
    from array_api_compat import is_array_api_obj

    from diptych._arrays import is_sparse

    if Y is None:
        raise InputError("AWCCA requires y to be passed, but the target y is None; give the second view, Y.")
    if is_sparse(Y) or hasattr(Y, "columns"):
        return Y
    if hasattr(Y, "to_frame"):  # a series, whose row labels are kept
        return Y.to_frame()
    readable = hasattr(Y, "__len__") or hasattr(Y, "__array__")
    y = np.asarray(Y) if readable and not is_array_api_obj(Y) else Y
    return y[:, None] if getattr(y, "ndim", 2) == 1 else y


def pair_rows(x: Any, y: Any, pairing: Any = None) -> Any:
    """Return the pairing of two views; without one, data frames are paired by their row labels.

    None stands for row with row: if the labels are the same in the same order, or a view has none. Labels
    that do not agree as sets are refused. A ``pairing`` is in row numbers, whatever the labels; a series has
    the labels of Y.
    """
    if pairing is not None:
        return order_rows(pairing, y, "pairing", "Y")
    labels_x, labels_y = _row_labels(x), _row_labels(y)
    if labels_x is None or labels_y is None:
        return None
    return _find_rows(labels_y, labels_x, "Y", "X")


def order_rows(values: Any, view: Any, name: str, view_name: str) -> Any:
    """Return a series or data frame with its rows in the order of those of a view, by their labels.

    Values or views without labels stay as they are; labels that do not agree as sets are refused.
    """
    labels, view_labels = _row_labels(values), _row_labels(view)
    if labels is None or view_labels is None:
        return values
    rows = _find_rows(view_labels, labels, view_name, name)
    return values if rows is None else values.iloc[rows]


def _row_labels(view: Any) -> Any:
    """Return the row labels of a series or data frame of pandas, or None."""
    index = getattr(view, "index", None)
    # There is no index unless somebody has imported pandas.
    labels = getattr(sys.modules.get("pandas"), "Index", None)
    return index if labels is not None and isinstance(index, labels) else None


def _find_rows(wanted: Any, labels: Any, wanted_name: str, name: str) -> Any:
    """Return the row of each wanted label among ``labels``; None if they are equal, or differ in number."""
    if len(labels) != len(wanted) or labels.equals(wanted):
        return None
    by_position = "to match rows by position, give arrays (to_numpy())"
    for ours, owner, theirs, other in (
        (wanted, wanted_name, labels, name),
        (labels, name, wanted, wanted_name),
    ):
        missing = ours[~ours.isin(theirs)]
        if len(missing):
            raise InputError(
                f"the row labels of {wanted_name} and {name} do not agree: {owner} has {missing[0]!r}, and "
                f"{other} does not; give both the same labels, or, {by_position}."
            )
    if not (labels.is_unique and wanted.is_unique):
        repeated = wanted[wanted.duplicated()] if not wanted.is_unique else labels[labels.duplicated()]
        raise InputError(
            f"{wanted_name} and {name} have the same row labels in another order, and {repeated[0]!r} is the "
            f"label of several rows, so they cannot be matched; make the labels unique, or, {by_position}."
        )
    warnings.warn(
        f"{wanted_name} and {name} have the same row labels in another order, so rows were matched by label; "
        f"{by_position}.",
        DataWarning,
        stacklevel=4,
    )
    return labels.get_indexer(wanted)


def check_pairing(pairing: Any, n_x: int, y: Array) -> Array:
    """Return ``pairing`` as an index array in the backend of ``y``; None pairs row with row.

    Row j of ``y`` belongs to row ``pairing[j]`` of X.
    """
    import numpy as np
    from array_api_compat import device, is_array_api_obj

    from diptych._arrays import dense_like, move_like, namespace

    n_y = y.shape[0]
    xp = namespace(y)
    if pairing is None:
        if n_x != n_y:
            raise InputError(
                f"X has {n_x} rows and Y has {n_y}; without a pairing they must be equal. "
                "Give pairing, an integer array with pairing[j] the row of X that row j of Y belongs to."
            )
        return xp.arange(n_y, dtype=xp.int64, device=device(dense_like(y)))
    if not is_array_api_obj(pairing):
        pairing = np.asarray(pairing)
    pairing = move_like(pairing, y)
    if pairing.ndim != 1 or pairing.shape[0] != n_y:
        raise InputError(
            f"pairing has shape {tuple(pairing.shape)}; expected ({n_y},), one row of X for each row of Y."
        )
    if not xp.isdtype(pairing.dtype, "integral"):
        raise InputError(f"pairing has dtype {pairing.dtype}; expected integers (row numbers of X).")
    low, high = int(xp.min(pairing)), int(xp.max(pairing))
    if low < 0 or high >= n_x:
        raise InputError(
            f"pairing has entries from {low} to {high}, but X has rows 0 to {n_x - 1}; "
            "every entry must be a row of X."
        )
    return xp.astype(pairing, xp.int64, copy=False)


def check_sample_weight(sample_weight: Any, y: Array) -> Array | None:
    """Return ``sample_weight``, one for each row of ``y``, as float64 in its backend; None stays None."""
    if sample_weight is None:
        return None
    import numpy as np
    from array_api_compat import is_array_api_obj

    from diptych._arrays import move_like, namespace

    xp = namespace(y)
    try:
        values = sample_weight if is_array_api_obj(sample_weight) else np.asarray(sample_weight)
        weights = move_like(values, y, dtype=xp.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight has values that are not numbers; give one weight per pair.") from None
    if weights.ndim != 1 or weights.shape[0] != y.shape[0]:
        raise InputError(
            f"sample_weight has shape {tuple(weights.shape)}; expected ({y.shape[0]},), one weight for each "
            "row of Y."
        )
    if not bool(xp.all(xp.isfinite(weights) & (weights >= 0.0))):
        raise InputError("sample_weight has negative, NaN or infinite entries; give weights of 0 or above.")
    return weights


def check_pair_of_views(
    x: Any, y: Any, pairing: Any = None, *, sparse: bool = False
) -> tuple[Array, Array, Array]:
    """Return both views and their pairing, checked and in one backend; ``sparse`` as in ``check_matrix``.

    Data frames are paired by their row labels, as in ``pair_rows``.
    """
    pairing = pair_rows(x, y, pairing)
    x, y = check_view(x, "X", sparse=sparse), check_view(y, "Y", sparse=sparse)
    check_same_backend(x, y)
    return x, y, check_pairing(pairing, x.shape[0], y)


def check_same_backend(x: Array, y: Array, x_name: str = "X", y_name: str = "Y") -> None:
    """Raise an error if the views are of two libraries or on two devices."""
    from array_api_compat import device, is_numpy_array

    from diptych._arrays import dense_like

    a, b = dense_like(x), dense_like(y)
    if is_numpy_array(a) != is_numpy_array(b) or device(a) != device(b):
        raise InputError(
            f"{x_name} is a {type(x).__module__} array on {device(a)} and {y_name} a {type(y).__module__} "
            f"array on {device(b)}; give both in the same library and on the same device."
        )


def _as_real_float(view: Array, name: str) -> Array:
    import numpy as np
    from array_api_compat import is_numpy_array, is_torch_array

    from diptych._arrays import namespace

    xp = namespace(view)
    if is_numpy_array(view) and view.dtype.kind in "OUS":
        try:
            view = view.astype(np.float64)
        except (TypeError, ValueError) as error:
            kind = NotNumbersError if isinstance(error, TypeError) else InputError
            raise kind(f"{name} has values that are not numbers ({error}); give numbers.") from None
    if xp.isdtype(view.dtype, "complex floating"):
        raise InputError(f"{name}: Complex data not supported (dtype {view.dtype}); give real numbers.")
    if view.dtype in (xp.float32, xp.float64):
        return view
    if (is_torch_array(view) and view.dtype.is_floating_point) or (
        is_numpy_array(view) and view.dtype.kind == "f"
    ):
        return xp.astype(view, xp.float64 if view.dtype.itemsize > 4 else xp.float32)
    if xp.isdtype(view.dtype, ("bool", "integral")):
        return xp.astype(view, xp.float64)
    raise InputError(f"{name} has dtype {view.dtype}; expected real numbers, for example float32.")


def _all_finite(view: Array, block_rows: int = 8192) -> bool:
    from diptych._arrays import namespace

    # Row blocks keep the boolean temporaries small, whatever the size of the view.
    xp = namespace(view)
    return all(
        bool(xp.all(xp.isfinite(view[i : i + block_rows, :]))) for i in range(0, view.shape[0], block_rows)
    )


_SHOWN_COLUMNS = 5


def _describe_missing(view: Array, name: str, columns: Any, block_rows: int = 8192) -> str:
    """Return the message for a view with NaN or infinity; ``columns`` are the names of a data frame's."""
    import numpy as np

    from diptych._arrays import is_sparse, namespace, to_numpy

    xp = namespace(view)
    rows, where, has_nan = 0, np.zeros(view.shape[1], dtype=bool), False
    if is_sparse(view):
        bad, has_nan = ~np.isfinite(view.data), bool(np.isnan(view.data).any())
        rows = len(np.unique(np.repeat(np.arange(view.shape[0]), np.diff(view.indptr))[bad]))
        where[view.indices[bad]] = True
    for start in range(0, 0 if is_sparse(view) else view.shape[0], block_rows):
        block = view[start : start + block_rows, :]
        bad = ~xp.isfinite(block)
        rows += int(xp.count_nonzero(xp.any(bad, axis=1)))
        where |= to_numpy(xp.any(bad, axis=0))
        has_nan = has_nan or bool(xp.any(xp.isnan(block)))
    numbers = np.flatnonzero(where)
    shown = [str(i) if columns is None else repr(columns[i]) for i in numbers[:_SHOWN_COLUMNS]]
    more = len(numbers) - len(shown)
    listed = ", ".join(shown) + (f" and {more:,} more" if more else "")
    advice = "fill them in with an imputer (sklearn.impute) in a pipeline, or " if has_nan else ""
    return (
        f"{name} contains NaN or infinity in {rows:,} of {count(view.shape[0], 'row')} "
        f"(column{'s' if len(numbers) > 1 else ''} {listed}); {advice}leave those rows out of both views."
    )
