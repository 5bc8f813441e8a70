"""The doors: what comes in is checked once, and what is wrong with it is said in one sentence."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from numbers import Integral
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import scipy.sparse
from array_api_compat import device, is_array_api_obj, is_numpy_array, is_torch_array

from diptych._arrays import Array, move_like, namespace

Task: TypeAlias = Literal["search", "annotate"]
Similarity: TypeAlias = Literal["cosine", "l2"]

TASKS: tuple[Task, ...] = ("search", "annotate")
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "l2")

SEARCHED_VIEW: dict[Task, Literal["x", "y"]] = {"search": "x", "annotate": "y"}
"""The view whose items a task searches: images X for a text, texts Y for an image."""

QUERY_VIEW: dict[Task, Literal["x", "y"]] = {"search": "y", "annotate": "x"}
"""The view of a task's queries."""


class InputError(ValueError):
    """Something given by the user is not what was expected; the message, one line, says what to do."""

    def __init__(self, message: object = "") -> None:
        # What other libraries say, and is quoted, may have line breaks.
        super().__init__(" ".join(line.strip() for line in str(message).splitlines() if line.strip()))


class DataWarning(UserWarning):
    """Something about the data that users should know; the message says what it is and what to do."""


def count(n: int, noun: str) -> str:
    """``n`` with its noun, singular or plural, for messages.

    Examples
    --------
    >>> count(1, "image"), count(1200, "image"), count(2, "query")
    ('1 image', '1,200 images', '2 queries')
    """
    plural = f"{noun[:-1]}ies" if noun[-1] == "y" and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def not_installed(what: str, extra: str, package: str = "") -> InputError:
    """The error for ``what`` without the packages of an optional extra: it names the command to install them.

    Parameters
    ----------
    what
        What needs them, as the subject of a sentence: "HDF5 files need".
    extra
        Name of the extra in this package's metadata.
    package
        The only one of its packages that is needed; empty: all of them.
    """
    found = [line.partition(";") for line in _requirements() if re.search(rf"extra == .{extra}\b", line)]
    wanted = [name.strip() for name, *_ in found if name.startswith(package)]
    names = [re.match(r"[\w.-]+", each).group() for each in wanted]  # type: ignore[union-attr]
    quoted = " ".join(f'"{each}"' for each in wanted) or package or extra
    listed = " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"
    return InputError(f"{what} {listed or package or extra}; install with: pip install {quoted}")


def _requirements() -> list[str]:
    try:
        return requires("diptych") or []
    except PackageNotFoundError:  # run from a folder of sources, without an installation
        return []


def check_choice(value: object, choices: tuple[str, ...], name: str) -> str:
    """``value`` if it is one of ``choices``."""
    if value not in choices:
        raise InputError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}.")
    return str(value)


def check_task(task: object) -> Task:
    """``task`` if it is the name of one."""
    return cast(Task, check_choice(task, TASKS, "task"))


def check_similarity(similarity: object) -> Similarity:
    """``similarity`` if it is the name of one."""
    return cast(Similarity, check_choice(similarity, SIMILARITIES, "similarity"))


def check_count(count: object, name: str) -> int:
    """``count`` if it is a whole number of at least 1."""
    if isinstance(count, Integral) and not isinstance(count, bool) and int(count) >= 1:
        return int(count)
    raise InputError(f"{name}={count!r}; give a whole number of at least 1.")


def check_number(value: object, name: str) -> float:
    """Return ``value`` as a float."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give a number.") from None


def check_seed(random_state: object) -> int | None:
    """``random_state`` if it can seed a generator: a whole number of at least 0, or None."""
    if random_state is None:
        return None
    if isinstance(random_state, Integral) and not isinstance(random_state, bool) and int(random_state) >= 0:
        return int(random_state)
    raise InputError(f"random_state={random_state!r}; give a whole number of at least 0, or None.")


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8; a file name of other bytes, or half a pair, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_matrix(view: Any, name: str = "X", *, n_features: int | None = None) -> Array:
    """``view`` as a matrix with rows and columns; its entries are not looked at. Lists become NumPy."""
    if scipy.sparse.issparse(view):
        raise InputError(f"{name} is a sparse matrix; give a dense array, for example {name}.toarray().")
    if isinstance(view, np.ma.MaskedArray):
        raise InputError(
            f"{name} is a masked array, and masked values would be used as if they were known; fill them "
            f"({name}.filled(...)) or leave those rows out."
        )
    if not is_array_api_obj(view):
        try:
            view = np.asarray(view)
        except ValueError as error:
            raise InputError(f"{name} could not be read as an array: {error}.") from None
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
    _check_width(view, name, n_features)
    return view


def check_view(view: Any, name: str = "X", *, n_features: int | None = None) -> Array:
    """``view`` as a real floating-point matrix with finite entries.

    float32 and float64 arrays of any backend pass through without a copy; float16 becomes float32
    and integers float64. Lists and data frames become NumPy.
    """
    view = _as_real_float(check_matrix(view, name), name)
    _check_width(view, name, n_features)
    if not _all_finite(view):
        raise InputError(f"{name} contains NaN or infinity; remove or impute those rows first.")
    return view


def check_pairing(pairing: Any, n_x: int, y: Array) -> Array:
    """``pairing`` as an index array beside ``y``: row j of ``y`` belongs to row ``pairing[j]`` of X."""
    n_y = y.shape[0]
    xp = namespace(y)
    if pairing is None:
        if n_x != n_y:
            raise InputError(
                f"X has {n_x} rows and Y has {n_y}; without a pairing they must be equal. "
                "Give pairing, an integer array with pairing[j] the row of X that row j of Y belongs to."
            )
        return xp.arange(n_y, dtype=xp.int64, device=device(y))
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
            f"pairing reaches from {low} to {high}, but X has rows 0 to {n_x - 1}; "
            "every entry must be a row of X."
        )
    return xp.astype(pairing, xp.int64, copy=False)


def check_pair_of_views(x: Any, y: Any, pairing: Any = None) -> tuple[Array, Array, Array]:
    """Both views and their pairing, checked together and in one backend."""
    x, y = check_view(x, "X"), check_view(y, "Y")
    check_together(x, y)
    return x, y, check_pairing(pairing, x.shape[0], y)


def check_together(x: Array, y: Array) -> None:
    """Refuse views of two libraries or on two devices."""
    if is_numpy_array(x) != is_numpy_array(y) or device(x) != device(y):
        raise InputError(
            f"X is a {type(x).__module__} array on {device(x)} and Y a {type(y).__module__} array on "
            f"{device(y)}; give both in the same library and on the same device."
        )


def _check_width(view: Array, name: str, n_features: int | None) -> None:
    if n_features is not None and view.shape[1] != n_features:
        raise InputError(
            f"{name} has {view.shape[1]} features, but is expecting {n_features} features as input: "
            "give the same features as in fit."
        )


def _as_real_float(view: Array, name: str) -> Array:
    xp = namespace(view)
    if is_numpy_array(view) and view.dtype.kind in "OUS":
        try:
            view = view.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} holds values that are not numbers ({error}); give numbers.") from None
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
    # Row blocks keep the boolean temporaries small, whatever the size of the view.
    xp = namespace(view)
    return all(
        bool(xp.all(xp.isfinite(view[i : i + block_rows, :]))) for i in range(0, view.shape[0], block_rows)
    )
