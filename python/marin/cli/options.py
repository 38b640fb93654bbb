"""Which options were given: one that a command has no use for is refused, never ignored."""

import typer

from marin.errors import MarinError


def given(context: typer.Context, name: str) -> bool:
    """Whether the parameter `name` stands on the command line, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(context: typer.Context, why: str, *names: str) -> None:
    """Raises `MarinError` if one of the parameters `names` was given; `why` says what to do."""
    found = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names and given(context, parameter.name)
    ]
    if found:
        raise MarinError(f"{', '.join(found)}: {why}")
