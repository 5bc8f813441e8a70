"""What LaTeX needs of a table, checked without LaTeX."""

import re


def check_latex(text):
    """Rows of equal width, balanced braces and dollars, and no sign that pdfLaTeX does not know."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = re.sub(r"\\[\\&%$#_{}]", lambda sign: r"\\" if sign[0] == r"\\" else "", "\n".join(lines))
    assert body.count("{") == body.count("}")
    assert body.count("$") % 2 == 0
    assert not re.search(r"[#~^](?![^$]*\$)", re.sub(r"\$[^$]*\$", "", body))
    assert not [letter for letter in body if ord(letter) > 255], [c for c in body if ord(c) > 255]
    alignment = re.search(r"\\begin\{tabular\}\{((?:[lr]|p\{[^}]*\})+)\}", body)
    width = len(re.findall(r"[lr]|p\{[^}]*\}", alignment[1]))
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert rows
    for line in rows:
        spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
        assert line.count("&") + 1 + sum(spans) - len(spans) == width, line
    assert body.rstrip().endswith(r"\end{tabular}")
