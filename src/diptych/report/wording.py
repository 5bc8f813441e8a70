"""Words that pages and figures share: the names of the tasks, and foreign text made harmless to show."""

from __future__ import annotations

from diptych.checks import Task

TITLES: dict[Task, str] = {
    "search": "search: sentence → images",
    "annotate": "annotate: image → sentences",
}


def one_line(text: str, longest: int = 200) -> str:
    r"""``text`` on one line of at most ``longest`` characters, without characters that are not seen.

    Invisible ones can turn the direction of a line or hide a part of it.

    >>> one_line("a dog\n\tin   the snow")
    'a dog in the snow'
    """
    # Cut first: nothing that is read here needs a text of megabytes to be walked through.
    words = " ".join(text[: 8 * longest].split())
    seen = "".join(letter for letter in words if letter.isprintable())
    return seen if len(seen) <= longest else seen[: longest - 1].rstrip() + "…"
