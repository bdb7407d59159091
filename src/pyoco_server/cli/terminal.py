"""Terminal and process setup of the commands: Ctrl-C, shell completion, event loop, Japanese help."""

import asyncio
import gc
import json
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, Self, TypeVar

import cyclopts
from attrs import evolve
from cyclopts.help import DefaultFormatter, HelpPanel
from cyclopts.help.inline_text import InlineText
from rich.console import Console, ConsoleOptions
from rich.text import Text


class Interrupts:
    """Defers Ctrl-C until an `allowed` block, which raises KeyboardInterrupt as usual.

    An interrupt in the middle of drawing would leave the terminal without a cursor.
    """

    def __init__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()  # only it receives signals
        self._is_allowed = False
        self._is_pending = False

    def __enter__(self) -> Self:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)
        if self._is_pending and error is None:
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        self._is_allowed = True
        try:
            if self._is_pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_allowed = False

    def _receive(self, _: int, __: FrameType | None) -> None:
        self._is_pending = True
        if self._is_allowed:
            self._is_allowed = False
            raise KeyboardInterrupt


# Shell completion

Shell = Literal["bash", "zsh", "fish"]


def add_completion(app: cyclopts.App) -> None:
    """Adds `--install-completion` and `--show-completion SHELL`."""

    def show_completion(shell: Shell, /) -> None:
        """Print the completion script for bash, zsh or fish.

        Parameters
        ----------
        shell
            Target shell.
        """
        print(app.generate_completion(shell=shell))

    app.register_install_completion_command(
        help="Install completion for your shell (bash, zsh or fish) and enable it in its startup file."
    )
    app.command(show_completion, name="--show-completion")


# Event loop: uvloop where available, because it halves the cost of a request.

T = TypeVar("T")

GC_THRESHOLDS = (10_000, 10, 100)
"""The default collects the young generation every 700 new objects: several times per run.

The others are collected when a few large requests have come: the middle one often, because it holds up
everything for as long as it has objects, and the oldest one seldom.
"""
SWITCH_SEC = 0.001
"""Beside a thread that computes, the event loop waits this long for the interpreter, often per request."""


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not available on Windows
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve(main: Coroutine[Any, Any, T]) -> T:
    """Like `run`, for a long-lived process with much short-lived garbage and few reference cycles."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SEC)
    return run(main)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


# Japanese help: the same pages with the texts of help.ja.json; texts without a translation stay English.


class JapaneseHelp(DefaultFormatter):
    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        entries = [evolve(entry, description=_translated(entry.description)) for entry in panel.entries]
        super().__call__(console, options, panel.copy(title=_title(panel.title), entries=entries))

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        super().render_description(console, options, _translated(description))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:  # noqa: ARG002
        if usage:
            console.print(Text("使い方: ", "bold") + Text(str(usage)))


_MARKS = {
    "[choices: ": "[選択肢: ",
    "[default: ": "[既定: ",
    "[env var: ": "[環境変数: ",
    "[required]": "[必須]",
}


class _JapaneseText(InlineText):
    """The library appends these marks when it renders an option."""

    def append(self, text: Text) -> None:
        plain = text.plain
        for mark, translated in _MARKS.items():
            if plain.startswith(mark):
                plain = translated + plain.removeprefix(mark)
        super().append(Text(plain, text.style))


def in_japanese(text: str) -> str:
    return help_texts().get(" ".join(text.split()), text)


@cache
def help_texts() -> dict[str, str]:
    """By the English text."""
    texts: dict[str, str] = json.loads(Path(__file__).with_name("help.ja.json").read_text("utf-8"))
    return texts


def _title(title: Any) -> Any:
    return in_japanese(title.plain if isinstance(title, Text) else title) if title else title


def _translated(description: Any) -> Any:
    if isinstance(description, InlineText):
        translated = _JapaneseText(
            _translated(description.primary_renderable), force_empty_end=description.force_empty_end
        )
        translated.texts = description.texts
        return translated
    from rich.markdown import Markdown  # noqa: PLC0415 - a tenth of a command's start, and only help needs it

    if isinstance(description, Markdown):
        return Markdown(in_japanese(description.markup))
    if isinstance(description, Text):
        return Text(in_japanese(description.plain), end=description.end)
    return in_japanese(description) if isinstance(description, str) else description
