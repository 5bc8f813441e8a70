"""Random metadata and random filters."""

from hypothesis import strategies as st

from diptych.retrieval._filters import plain_number

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    # Floats from 2⁵³ on are integers, and int64 ends at 2⁶³.
    st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, 2**60, 2**63 - 513, 2**63 - 1, -(2**63), 1 - 2**63]),
    st.sampled_from([2.0**53, 2.0**60, 2.0**63, -(2.0**63), 1e16, 1e23, -1e23, 1e300, 0.1, 2.5, -0.0]),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
).map(plain_number)
# Code points order the last two differently than UTF-16 does.
WORDS = ["", "a", "b", "B", "ab", "a b", "1", "true", "null", "it's", '"', "\\", "\\u0000", "%s", "{}"]
STRINGS = st.sampled_from([*WORDS, "é", "猫", "2019-05-01", "2019-05-01T10:00:00", "\uffff", "\U00010000"])
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, STRINGS)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=2)
)
KEYS = st.sampled_from(["a", "b", "c'd", '"', "%s", "{0}", "\\", "and"])
METADATA = st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=6)

ORDERED = NUMBERS | STRINGS
OPERATIONS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("$eq", "$ne"), PLAIN),
            **dict.fromkeys(("$in", "$nin"), st.lists(PLAIN, max_size=20)),
            **dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), ORDERED),
            "$exists": st.booleans(),
        },
    ).filter(bool),
    lambda inner: st.fixed_dictionaries({"$not": inner}),
    max_leaves=2,
)
FILTERS = st.recursive(
    st.dictionaries(KEYS, st.one_of(OPERATIONS, PLAIN, st.lists(PLAIN, max_size=3)), max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=4,
)
