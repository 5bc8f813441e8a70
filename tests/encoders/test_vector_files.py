import contextlib
import gzip
import os
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diptych import InputError
from diptych.encoders import WordVectors, read_word_vectors
from diptych.encoders._vector_files import MAX_LINE_BYTES
from vector_files import MATRIX, WORDS, binary, text

FORMATS = {
    "word2vec-binary": binary(),
    "word2vec-binary-without-line-feeds": binary(newline=b""),
    "word2vec-text": text(header=True),
    "glove": text(),
    "fasttext-vec": text(header=True, end=" \n"),
    "windows": text(header=True, end="\r\n"),
    "tabs": text().replace(b" ", b"\t"),
    "byte-order-mark": b"\xef\xbb\xbf" + text(header=True),
    "no-last-line-feed": text()[:-1],
}


@pytest.fixture
def write(tmp_path):
    def write(content, name="vectors"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def refused(path, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        read_word_vectors(path, **options)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_every_format_is_recognised_by_its_content(write, name, pack):
    # The file name is wrong for most of the formats.
    table = read_word_vectors(write(pack(FORMATS[name]), "vectors.bin"))
    assert table.words == tuple(WORDS)
    assert table.matrix.dtype == np.float32
    np.testing.assert_array_equal(table.matrix, MATRIX)


@pytest.mark.parametrize("name", FORMATS)
def test_only_the_requested_words_are_kept(write, name):
    table = read_word_vectors(write(FORMATS[name]), ["tree", "犬", "unicorn"])
    assert table.words == ("犬", "tree")
    np.testing.assert_array_equal(table.matrix, MATRIX[[4, 7]])


@pytest.mark.parametrize("name", FORMATS)
def test_first_reads_from_the_start(write, name):
    assert read_word_vectors(write(FORMATS[name]), first=3).words == tuple(WORDS[:3])
    table = read_word_vectors(write(FORMATS[name]), ["tree", "unicorn"], first=2)
    assert table.words == (*WORDS[:2], "tree")
    np.testing.assert_array_equal(table.matrix, MATRIX[[0, 1, 7]])
    assert read_word_vectors(write(FORMATS[name]), ["dog"], first=10**9).words == tuple(WORDS)


def test_damaged_first_entries_are_left_out_unless_they_were_requested(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"dog 1 2\nb\xffd 1 2\nnan nan 1\nodd 1 x\n7 8 9 1\ncat 3 4\ndog 5 6\nlate 1 y\n")
    kept = read_word_vectors(path, ["dog"], first=7)
    assert kept.words == ("dog", "cat")
    np.testing.assert_array_equal(kept["dog"], [1, 2])
    for word in ("nan", "odd", "7"):
        with pytest.raises(InputError, match="line"):
            read_word_vectors(path, ["dog", word], first=7)
    assert read_word_vectors(path, ["cat"], first=7, max_bytes=16).words == ("dog", "cat")
    assert read_word_vectors(path, ["dog"], first=7, max_bytes=8).words == ("dog",)
    with pytest.raises(InputError, match="more than 8 bytes"):
        read_word_vectors(path, ["cat"], first=7, max_bytes=8)


def test_words_with_spaces_are_read(write):
    words = ["dog", "at name@domain.com", ". . ."]
    path = write(text(words, MATRIX[:3]))
    assert read_word_vectors(path).words == tuple(words)
    assert read_word_vectors(path, [". . ."]).words == (". . .",)


def test_a_repeated_word_has_its_first_vector(write):
    for content in (binary(["dog", "cat", "dog"], MATRIX[:3]), text(["dog", "cat", "dog"], MATRIX[:3])):
        table = read_word_vectors(write(content))
        assert table.words == ("dog", "cat")
        np.testing.assert_array_equal(table.matrix, MATRIX[:2])


words = st.text(st.characters(blacklist_categories=("C", "Z")), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words, min_size=1, max_size=6, unique=True), st.integers(2, 6), st.integers(-6, 6))
def test_written_vectors_are_read_back(tmp_path, words, dimensions, exponent):
    rng = np.random.default_rng(len(words))
    matrix = (rng.normal(size=(len(words), dimensions)) * 10.0**exponent).astype(np.float32)
    path = tmp_path / "vectors"
    for content in (binary(words, matrix), binary(words, matrix, b""), text(words, matrix, header=True)):
        path.write_bytes(content)
        table = read_word_vectors(path)
        assert table.words == tuple(words)
        np.testing.assert_array_equal(table.matrix, matrix)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([b"", b"2 3\n", b"\x1f\x8b", b"dog 1 2\n", binary()[:60]]),
    st.binary(max_size=200),
)
def test_any_bytes_give_vectors_or_an_input_error(tmp_path, start, rest):
    path = tmp_path / "vectors"
    path.write_bytes(start + rest)
    with contextlib.suppress(InputError):
        assert isinstance(read_word_vectors(path), WordVectors)


def test_a_truncated_binary_file_is_refused_at_every_length(write):
    whole = binary()
    for size in range(4, len(whole) - 1):
        refused(write(whole[:size]), f"byte {size}: the file ends inside word", words=["dog"])


def test_a_text_file_that_disagrees_with_its_header_is_refused(write):
    lines = text(header=True).splitlines(keepends=True)
    refused(write(b"".join(lines[:5])), "line 5: the file ends after 4 words, but its header announces 8")
    refused(write(b"".join(lines) + lines[-1]), "ends after 9 words")


def test_a_damaged_gzip_file_is_refused(write):
    packed = gzip.compress(text(header=True))
    for size in (12, len(packed) // 2, len(packed) - 3):
        refused(write(packed[:size]), "gzip data is damaged or truncated")
    refused(write(packed[:30] + b"\x00" * 20 + packed[50:]), "gzip data is damaged")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"8 5\n", "ends inside word 1"),
        (text(header=True).replace(b"8 5", b"8 6"), "line 2: 5 numbers .* expected 6"),
        (text(header=True).replace(b"8 5", b"8 4"), "line 2: .* is not a word and 4 numbers"),
        (text(header=True).replace(b"8 5", b"8 0"), "line 1: .*vectors of 0 numbers"),
        (text() + b"cat 1 2 3\n", "line 9: 3 numbers after b'cat 1 2 3'; expected 5"),
        (text() + b"cat 1 2 x 4 5\n", "line 9: .* is not a word and 5 numbers"),
        (text() + b"cat 1 2 3 4 5 6\n", "line 9: .* is not a word and 5 numbers"),
        (text() + b"cat 1 2 nan 4 5\n", "line 9: the vector of 'cat' contains NaN or infinity"),
        (text() + b"cat 1 2 1e60 4 5\n", "line 9: the vector of 'cat' contains NaN or infinity"),
        (text() + b"c\xfft 1 2 3 4 5\n", "line 9: the word .* is not UTF-8"),
        (binary(header=b"8 4\n"), "byte .*(not UTF-8|no word ends|more follows)"),
        (binary(header=b"8 6\n"), "byte .*(not UTF-8|no word ends|ends inside)"),
        (binary(header=b"7 5\n"), "more follows after the 7 words"),
        (binary(header=b"9 5\n"), "ends inside word 9"),
        (binary(matrix=MATRIX * np.inf), "byte .*: the vector of '</s>' contains NaN or infinity"),
        (b"<!DOCTYPE html>\n<html>", "line 1: .* neither a header"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"\x93NUMPY\x01\x00" + bytes(40), r"NumPy array without words; pass WordVectors\(words, numpy.load"),
        (b"\x80\x04\x95\x10" + bytes(40), "pickle, which is never loaded"),
        ((793712314).to_bytes(4, "little") + bytes(40), "fastText model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "line 1"),
    ],
)
def test_malformed_files_are_refused_with_the_place(write, content, message):
    refused(write(content), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"999999999999 300\ndog " + bytes(1200), "ends inside word 2 of the 999999999999"),
        (b"5 999999999999\ndog " + bytes(100), "vectors of 999999999999 numbers"),
        (b"9" * 5000 + b" 300\n" + bytes(100), "line 2: 0 numbers"),
        (b"a" * (MAX_LINE_BYTES + 5), "does not begin with a line"),
        (b"dog 1 2\n" + b"a" * (MAX_LINE_BYTES + 5), "line 2: the line is longer"),
        (gzip.compress(b"3 2\n" + b"a" * 10_000_000), "byte 4: no word ends"),
    ],
)
def test_a_hostile_header_allocates_no_memory(write, content, message):
    path = write(content)
    tracemalloc.start()
    try:
        refused(path, message)
        assert tracemalloc.get_traced_memory()[1] < 6 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()


def test_limits_and_requested_words_are_checked(write):
    path = write(binary())
    refused(path, "more than 100 bytes", max_bytes=100)
    assert len(read_word_vectors(path, ["dog"], max_bytes=100)) == 1
    refused(path, "none of the 1 requested words", words=["unicorn"])
    for first, words in ((0, None), (-1, ["dog"])):
        with pytest.raises(InputError, match=f"first={first}"):
            read_word_vectors(path, words, first=first)
    with pytest.raises(InputError, match="one string"):
        read_word_vectors(path, "dog")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    refused(tmp_path / "nowhere.bin", "cannot be read")
    refused(tmp_path, "cannot be read")


@pytest.mark.slow  # reads 26,000 vectors six times
@pytest.mark.data
def test_binary_and_text_files_agree_with_gensim(news_vectors, tmp_path):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    theirs = models.KeyedVectors.load_word2vec_format(str(news_vectors), binary=True)
    ours = read_word_vectors(news_vectors)
    assert ours.words == tuple(theirs.index_to_key)
    np.testing.assert_array_equal(ours.matrix, theirs.vectors)
    path = tmp_path / "vectors.txt"
    theirs.save_word2vec_format(str(path), binary=False)
    table = read_word_vectors(path)
    assert table.words == ours.words
    np.testing.assert_array_equal(table.matrix, ours.matrix)
    headless = tmp_path / "headless.txt"
    headless.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:2001]))
    np.testing.assert_array_equal(read_word_vectors(headless).matrix, ours.matrix[:2000])


READ_GOOGLE_NEWS_SIZE = """
import sys
from diptych.encoders import read_word_vectors
table = read_word_vectors(sys.argv[1], [f"word{i}" for i in range(0, 3_000_000, 137)])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(table), int(peak) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads its memory from /proc")
def test_a_file_of_google_news_size_is_read_within_500_megabytes(tmp_path):
    # A pipe in place of a 3.6 GB file on the disk.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    row = np.ones(300, dtype="<f4").tobytes()

    def feed():
        with open(pipe, "wb") as file:
            file.write(b"3000000 300\n")
            for start in range(0, 3_000_000, 1000):
                file.write(b"".join(b"word%d %b\n" % (i, row) for i in range(start, start + 1000)))

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    command = [sys.executable, "-c", READ_GOOGLE_NEWS_SIZE, str(pipe)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    kept, megabytes = map(int, result.stdout.split())
    assert kept == len(range(0, 3_000_000, 137))
    assert megabytes < 500
