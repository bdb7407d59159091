"""REQ-0021: every message exists in both languages, and is used with the values that it names."""

import ast
import importlib
from pathlib import Path
from string import Formatter

from pyoco_server import cli
from pyoco_server.cli import Text, language
from pyoco_server.cli.client_texts import ADVICE
from pyoco_server.cli.output import ENTRIES
from support.tables import every_row

CLI = Path(cli.__path__[0])
MODULES = sorted(path.stem for path in CLI.glob("*texts.py"))
TEXTS = {
    (module, name): text
    for module in MODULES
    for name, text in vars(importlib.import_module(f"pyoco_server.cli.{module}")).items()
    if isinstance(text, Text)
}


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@every_row("key", TEXTS)
def test_both_languages_say_it_with_the_same_values(key: tuple[str, str]) -> None:
    text = TEXTS[key]
    assert text.en.strip()
    assert text.ja.strip()
    assert placeholders(text.en) == placeholders(text.ja)
    assert text.en.isascii() or "…" in text.en or "→" in text.en


def test_every_message_is_used_with_the_values_that_it_names() -> None:
    wrong, used = [], set()
    for path in sorted([*CLI.rglob("*.py"), CLI.parent / "admin_cli.py"]):
        tree = ast.parse(path.read_text())
        modules = _texts_modules(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add((modules.get(node.value.id, ""), node.attr))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                wrong += _misuse(node, node.func, modules, f"{path.name}:{node.lineno}")
    assert wrong == []
    assert sorted(set(TEXTS) - used) == []


@every_row("err_id", ADVICE)
def test_every_advice_is_for_an_error_that_exists_and_in_both_languages(err_id: str) -> None:
    assert err_id in ENTRIES
    assert ADVICE[err_id].en
    assert ADVICE[err_id].ja
    assert not placeholders(ADVICE[err_id].en + ADVICE[err_id].ja)


def _texts_modules(tree: ast.Module) -> dict[str, str]:
    """Under which name a file knows which catalogue."""
    return {
        alias.asname or alias.name: alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in MODULES
    }


def _misuse(call: ast.Call, named: ast.Attribute, modules: dict[str, str], place: str) -> list[str]:
    module = modules.get(named.value.id) if isinstance(named.value, ast.Name) else None
    text = TEXTS.get((module or "", named.attr))
    if module is None:
        return []
    given = {keyword.arg for keyword in call.keywords}
    if text is None or given != placeholders(text.en):
        return [f"{place}: {named.attr} with {sorted(map(str, given))}"]
    return []


@every_row(
    ("environ", "expected"),
    [
        ({}, "en"),
        ({"LANG": "ja_JP.UTF-8"}, "ja"),
        ({"LANG": "ja"}, "ja"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "jam_JM.UTF-8"}, "en"),
        ({"LANG": "ja_JP.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "ja_JP.utf8"}, "ja"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "ja_JP.utf8", "LC_ALL": "de_DE"}, "en"),
        ({"LANG": "ja_JP.UTF-8", "LC_ALL": ""}, "ja"),
    ],
)
def test_the_locale_decides(environ: dict[str, str], expected: str) -> None:
    assert language(environ) == expected
