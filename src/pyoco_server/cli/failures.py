"""How a command fails: the reason and advice on stderr, exit code 1 (130 for Ctrl-C).

Invalid arguments come with an example of a correct call. With `--output json`, stderr has one JSON object.
"""

import inspect
import io
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NoReturn, get_args

import cyclopts
from cyclopts.argument import Argument

from pyoco_server.cli import Message, Text, language, server_texts as texts
from pyoco_server.cli.terminal import JapaneseHelp
from pyoco_server.errors import ConfigError, ErrorEntry, IncompatibleNats, InvalidCliInput, PyocoServerError

MISSING = Text(en="{name} is missing", ja="{name} が指定されていません")
VALUE_MISSING = Text(en="{name} needs a value", ja="{name} には値が必要です")
MISTYPED = Text(
    en="{given} is not an option; did you mean {meant}?",
    ja="{given} というオプションはありません。{meant} の間違いではありませんか",
)
UNKNOWN_OPTION = Text(
    en="{option} is not an option{meant}", ja="{option} というオプションはありません{meant}"
)
UNKNOWN_COMMAND = Text(
    en="{command} is not a command{meant}", ja="{command} というコマンドはありません{meant}"
)
DID_YOU_MEAN = Text(en="; did you mean {name}?", ja="。{name} の間違いではありませんか")
NOT_ONE_OF = Text(
    en="{name} {given}: must be one of {choices}",
    ja="{name} {given}: 次のいずれかを指定してください: {choices}",
)
BAD_VALUE = Text(en="{name} {given}: must be {expected}", ja="{name} {given}: {expected}を指定してください")
WHOLE_NUMBER = Text(en="a whole number", ja="整数")
NUMBER = Text(en="a number", ja="数値")
OTHER_VALUE = Text(en="a valid value", ja="正しい形式の値")
REPEATED = Text(en="{option} is given more than once", ja="{option} が2回以上指定されています")
UNUSED = Text(en="cannot be used here: {tokens}", ja="ここでは使えない引数です: {tokens}")
EXAMPLE = Text(en="Example:  {command}", ja="例:  {command}")
USAGE = Text(en="Usage:    {command} --help", ja="使い方:  {command} --help")


# Invalid arguments

_SIMILARITY = 0.7
_TYPICAL_CALLS = {
    "pyoco-client": "submit --flow-name sample",
    "pyoco-server": "up --with-worker",
    "pyoco-server-admin": "api-key list",
    "pyoco-worker": "--flows flows",
}
"""A typical call of each program."""
_EXAMPLE_VALUES = {
    "action-key": "monthly-sales",
    "directory": "my-directory",
    "execution-id": "EXECUTION_ID",
    "file": "monthly-sales.yaml",
    "flow-name": "sample",
    "graph-id": "monthly-sales",
    "host": "127.0.0.1",
    "month": "2031-05",
    "name": "my_flows-1.0-py3-none-any.whl",
    "param": "rows=3",
    "port": "8000",
    "template-id": "monthly-sales",
    "tenant": "my-team",
    "wheel-file": "dist/my_flows-1.0-py3-none-any.whl",
    "worker-id": "node-1",
    "workflow-file": "flow.yaml",
}
"""Values for arguments in examples; others are shown by name in capitals."""
_BY_NAME = {"--flow-name", "--key-id", "--tenant", "--wheel-file", "--workflow-file"}
"""Arguments that messages and examples call by their option, although they also have a place."""


def explained(error: cyclopts.CycloptsError) -> Message:  # noqa: PLR0911 - one return per kind of error
    match error:
        case cyclopts.MissingArgumentError():
            return _missing(error)
        case cyclopts.UnknownOptionError():
            given = error.token.keyword or error.token.value
            known = [name for argument in error.argument_collection for name in argument.names]
            return UNKNOWN_OPTION(option=given, meant=_meant(given, known))
        case cyclopts.UnknownCommandError():
            given = (error.unused_tokens or [""])[0]
            return UNKNOWN_COMMAND(command=given, meant=_meant(given, _commands(error.app)))
        case cyclopts.CoercionError() if error.token is not None:
            return _bad_value(error, error.token.value)
        case cyclopts.RepeatArgumentError():
            return REPEATED(option=error.token.keyword or error.token.value)
        case cyclopts.UnusedCliTokensError():
            return UNUSED(tokens=shlex.join(error.unused_tokens or []))
        case _:
            error.verbose = False
            return Message.of(str(error), str(error))


def example(app: cyclopts.App, error: cyclopts.CycloptsError) -> str:
    """The command with its required arguments and the invalid one."""
    chain = [word for word in error.command_chain or () if not word.startswith("-")]
    command = app
    for word in chain:
        command = command[word]
    wanted = [a for a in _arguments(command) if a.required or _is_same(a, error.argument)]
    usual = [] if chain else [_TYPICAL_CALLS[_name_of(app)]]
    return " ".join([_name_of(app), *usual, *chain, *(_shown(argument) for argument in wanted)])


def command_line(app: cyclopts.App, error: cyclopts.CycloptsError) -> str:
    return " ".join([_name_of(app), *(error.command_chain or ())])


def _name_of(app: cyclopts.App) -> str:
    return app.name[0]


def _missing(error: cyclopts.MissingArgumentError) -> Message:
    assert error.argument is not None  # noqa: S101 - always set for this error
    name = _label(error.argument)
    mistyped = get_close_matches(name, [t for t in error.unused_tokens or [] if t.startswith("-")], n=1)
    if mistyped and mistyped[0] not in error.argument.names:
        return MISTYPED(given=mistyped[0], meant=name)
    return VALUE_MISSING(name=name) if mistyped or error.keyword else MISSING(name=name)


def _bad_value(error: cyclopts.CoercionError, given: str) -> Message:
    name = error.token.keyword if error.token is not None else None
    if name is None and error.argument is not None:
        name = _label(error.argument)
    choices = list(error.argument.get_choices() or ()) if error.argument is not None else []
    if choices:
        return NOT_ONE_OF(name=name, given=given, choices=", ".join(choices))
    return BAD_VALUE(name=name, given=given, expected=_expected(error.target_type)())


def _expected(kind: object) -> Text:
    return WHOLE_NUMBER if kind is int else NUMBER if kind is float else OTHER_VALUE


def _meant(given: str, known: Iterable[str]) -> Message:
    near = get_close_matches(given, list(known), n=1, cutoff=_SIMILARITY)
    return DID_YOU_MEAN(name=near[0]) if near else Message.of("", "")


def _commands(app: cyclopts.App | None) -> list[str]:
    return [] if app is None else [name for name in app if not name.startswith("-")]


def _arguments(command: cyclopts.App) -> Sequence[Argument]:
    if command.default_command is None:
        return []
    found = command.assemble_argument_collection(parse_docstring=False)
    return [argument for argument in found if argument.show and argument.parse]


def _is_same(argument: Argument, other: Argument | None) -> bool:
    return other is not None and argument.names == other.names


def _is_positional(argument: Argument) -> bool:
    """How it is called in messages; most arguments with a place also have a name."""
    return argument.name not in _BY_NAME and argument.field_info.kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


def _label(argument: Argument) -> str:
    name = argument.name
    return name.lstrip("-").replace("-", "_").upper() if _is_positional(argument) else name


def _shown(argument: Argument) -> str:
    if argument.hint is bool:
        return argument.name
    value = _value(argument)
    return value if _is_positional(argument) else f"{argument.name} {value}"


def _value(argument: Argument) -> str:
    choices: Any = argument.get_choices()
    if choices:
        return str(next(iter(choices)))
    name = argument.name.lstrip("-")
    is_number = bool({int, float} & {argument.hint, *get_args(argument.hint)})
    return _EXAMPLE_VALUES.get(name, "10" if is_number else name.replace("-", "_").upper())


# Exit codes and error output

FAILED = 1
INTERRUPTED = 130


def run_app(app: cyclopts.App, launcher: cyclopts.App | None = None) -> None:
    """Run a program; invalid arguments exit with 1 like every failure, where the library would use 2.

    `launcher` parses options that precede the command.
    """
    _replace_unencodable_output()
    if language() == "ja":
        app.help_formatter = JapaneseHelp()
    with _ending_with_the_reader():
        try:
            (launcher or app)(sys.argv[1:], exit_on_error=False, print_error=False)
        except cyclopts.CycloptsError as error:
            fail_arguments(app, error)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@contextmanager
def _ending_with_the_reader() -> Iterator[None]:
    """The reader of a pipe may end first, as in `pyoco-client list | head`; then nobody needs the rest."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, because the interpreter reports a failure at its end
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        sys.exit(FAILED)


def fail_arguments(app: cyclopts.App, error: cyclopts.CycloptsError) -> NoReturn:
    """Fail with MSG-PYOCO-0018, the reason, an example and the help command."""
    reason = explained(error)
    fail(
        _invalid_arguments(reason),
        EXAMPLE(command=example(app, error)),
        USAGE(command=command_line(app, error)),
        **facts_of(InvalidCliInput.entry, reason),
    )


def _invalid_arguments(detail: str) -> str:
    entry = InvalidCliInput.entry
    return f"{entry.err_id} {entry.msg_id} {entry.message(language())}: {detail}"


def _replace_unencodable_output() -> None:
    """A terminal without UTF-8 shows `?` for unsupported characters instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def reporting_failures() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        detail = "; ".join(error.problems)
        fail(
            texts.BAD_SETTINGS(), *(f"  {problem}" for problem in error.problems), detail=detail, advice=None
        )
    except InvalidCliInput as error:
        fail(_invalid_arguments(error.detail), **facts_of(error.entry, error.args[0]))
    except PyocoServerError as error:
        fail(with_message(error.entry, error.detail), **facts_of(error.entry, error.detail))
    except IncompatibleNats as error:
        fail(str(error))


def with_message(entry: ErrorEntry, detail: str) -> str:
    """The error id and detail; in Japanese also the catalogue message, because details are English."""
    message = f"{entry.ja}: " if language() == "ja" else ""
    return f"{entry.err_id} {message}{detail}"


def facts_of(entry: ErrorEntry, detail: object) -> dict[str, object]:
    """An error as JSON, and therefore in English."""
    return {"err_id": entry.err_id, "msg_id": entry.msg_id, "message": entry.en, "detail": _english(detail)}


def fail(*lines: str, **facts: object) -> NoReturn:
    """Report the lines: the reason, then advice. `facts` go into JSON."""
    report_failure(*lines, **facts)
    sys.exit(FAILED)


def report_failure(*lines: str, **facts: object) -> None:
    if wants_json(sys.argv[1:]):
        advice = "\n".join(str(_english(line)).strip() for line in lines[1:])
        known = {"err_id": None, "status": None, "detail": _english(lines[0]), "advice": advice or None}
        print(json.dumps({"error": {**known, **facts}}), file=sys.stderr)
        return
    for line in lines:
        print(line, file=sys.stderr)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether JSON was asked for by name. Read before the arguments are parsed, because that may fail."""
    return not {"--json", "--output=json"}.isdisjoint(arguments) or ("--output", "json") in pairwise(
        arguments
    )


def _english(text: object) -> object:
    return text.en if isinstance(text, Message) else text
