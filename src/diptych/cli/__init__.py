"""The commands, thin: each reads files, calls the library, and says what came out."""

import typer

from diptych.cli.changing import add, remove
from diptych.cli.demo import demo
from diptych.cli.files import check, encode_images_command, encode_text_command, scenes_command
from diptych.cli.fitting import evaluate, fit
from diptych.cli.reproduce import reproduce
from diptych.cli.searching import annotate, info, search, similar
from diptych.cli.serve import serve

app = typer.Typer(
    help="Search both ways between two paired views, pictures and sentences or any other two.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
encode = typer.Typer(help="Turn pictures or sentences into features on disk.", no_args_is_help=True)

app.command()(demo)
app.command()(fit)
app.command()(evaluate)
app.command()(search)
app.command()(annotate)
app.command()(similar)
app.command()(add)
app.command()(remove)
app.command()(info)
app.command()(serve)
app.command()(check)
app.command("scenes")(scenes_command)
app.command()(reproduce)
encode.command("images")(encode_images_command)
encode.command("text")(encode_text_command)
app.add_typer(encode, name="encode")
