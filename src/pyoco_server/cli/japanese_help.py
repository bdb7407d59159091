"""`--help` in Japanese: the same pages with the texts of `help_texts_ja`; without one they stay English."""

from typing import Any

from attrs import evolve
from cyclopts.help import DefaultFormatter, HelpPanel
from cyclopts.help.inline_text import InlineText
from rich.console import Console, ConsoleOptions
from rich.markdown import Markdown
from rich.text import Text

from pyoco_server.cli.help_texts_ja import HELP_TEXTS


class JapaneseHelp(DefaultFormatter):
    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        entries = [evolve(entry, description=_translated(entry.description)) for entry in panel.entries]
        super().__call__(console, options, panel.copy(title=_title(panel.title), entries=entries))

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        super().render_description(console, options, _translated(description))


def in_japanese(text: str) -> str:
    return HELP_TEXTS.get(" ".join(text.split()), text)


def _title(title: Any) -> Any:
    return in_japanese(title.plain if isinstance(title, Text) else title) if title else title


def _translated(description: Any) -> Any:
    if isinstance(description, InlineText):
        translated = InlineText(
            _translated(description.primary_renderable), force_empty_end=description.force_empty_end
        )
        translated.texts = description.texts
        return translated
    if isinstance(description, Markdown):
        return Markdown(in_japanese(description.markup))
    if isinstance(description, Text):
        return Text(in_japanese(description.plain), end=description.end)
    return in_japanese(description) if isinstance(description, str) else description
