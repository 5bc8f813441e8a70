"""``python -m diptych``."""

from diptych.cli import app

app()
