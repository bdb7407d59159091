"""The graph grammar of pyoco 0.7 and newer: a pipeline of terms, with blocks for control.

    pipeline  term >> term >> …
    term      task   node: task   pipe(NAME)
              switch(on=EXPR){ case: pipeline; …; default: pipeline }
              repeat(count=EXPR){ pipeline }
              foreach(over=EXPR, item=NAME, index=NAME){ pipeline }
              until(cond=EXPR, max_iter=N){ pipeline }

The loops also take `collect=`. pyoco ignores unknown arguments and does not limit nesting; here everything
that is not in this list is an error.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Never

from msgspec import Struct, field

from pyoco_server.domain.inputs import nearest
from pyoco_server.domain.strict_yaml import place_in, shown
from pyoco_server.engine import flow_expressions
from pyoco_server.errors import InvalidRequest

MAX_DEPTH = 50
MAX_TERMS = 4_096
"""After pipes are expanded: pyoco's own limit."""

_COLLECT = ("list", "last", "first", "flatten")
_VALUES = ("name", "number", "string", "template")
_TOKEN = re.compile(
    r"""
      (?P<skip>     [ \t\r\n]+ | \#[^\n]* )
    | (?P<shift>    >> )
    | (?P<template> \{\{ .*? \}\} )
    | (?P<string>   "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' )
    | (?P<unclosed> \{\{ | ["'] )
    | (?P<number>   [0-9]+ )
    | (?P<name>     [^\W\d]\w* )
    | (?P<sign>     [(){}:;,=] )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Word(NamedTuple):
    required: str
    optional: tuple[str, ...] = ()


_WORDS = {
    "switch": _Word("on"),
    "repeat": _Word("count", ("collect",)),
    "foreach": _Word("over", ("item", "index", "collect")),
    "until": _Word("cond", ("max_iter", "collect")),
}
WORDS = ("pipe", *_WORDS)


class Pipeline(Struct):
    """The references of a graph or a pipe."""

    tasks: set[str] = field(default_factory=set)
    pipes: list[str] = field(default_factory=list)
    terms: int = 0


class Rules(Struct, frozen=True, kw_only=True):
    named_nodes: bool = True
    allowed_env: tuple[str, ...] | None = None
    """Environment variables that expressions may read; None: checked before."""


def tasks_in(
    graph: str,
    pipes: Mapping[str, str],
    *,
    named_nodes: bool = True,
    allowed_env: tuple[str, ...] | None = None,
) -> set[str]:
    """The names of all tasks in a graph and its pipes. Raises InvalidRequest."""
    rules = Rules(named_nodes=named_nodes, allowed_env=allowed_env)
    parsed = {name: parse(text, f"pipes.{name}", rules) for name, text in pipes.items()}
    return _Expansion(parsed).tasks_of(parse(graph, "flow.graph", rules), "flow.graph")


def parse(text: str, place: str, rules: Rules) -> Pipeline:
    parser = _Parser(text, place, Pipeline(), rules)
    parser.whole(0)
    return parser.found


class _Expansion:
    """Expands pipes: checks that they exist, are not recursive, and stay within the limit."""

    def __init__(self, pipes: Mapping[str, Pipeline]) -> None:
        self._pipes = pipes
        self._sizes: dict[str, int] = {}
        self._tasks: set[str] = set()

    def tasks_of(self, graph: Pipeline, place: str) -> set[str]:
        self._add(graph, place, ())
        return self._tasks

    def _add(self, pipeline: Pipeline, place: str, inside: tuple[str, ...]) -> int:
        self._tasks |= pipeline.tasks
        size = pipeline.terms + sum(self._size(name, place, inside) for name in pipeline.pipes)
        if size > MAX_TERMS:
            raise InvalidRequest(f"{place}: more than {MAX_TERMS:,} terms after its pipes are expanded")
        return size

    def _size(self, name: str, place: str, inside: tuple[str, ...]) -> int:
        if name in inside:
            raise InvalidRequest(f"{place}: pipe({name}) contains itself: {' > '.join((*inside, name))}")
        if name not in self._pipes:
            raise InvalidRequest(
                f"{place}: pipe({name}) is not defined under pipes{nearest(name, self._pipes)}"
            )
        if len(inside) >= MAX_DEPTH:
            raise InvalidRequest(f"{place}: pipes are nested more than {MAX_DEPTH} deep")
        if name not in self._sizes:
            self._sizes[name] = self._add(self._pipes[name], f"pipes.{name}", (*inside, name))
        return self._sizes[name]


class _Parser:
    def __init__(self, text: str, place: str, found: Pipeline, rules: Rules) -> None:
        self.found = found
        self._text = text
        self._place = place
        self._rules = rules
        self._tokens = self._read()
        self._token = next(self._tokens)

    def whole(self, depth: int) -> None:
        self._pipeline(depth)
        self._take("end")

    def _pipeline(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._refuse(f"blocks are nested more than {MAX_DEPTH} deep")
        self._term(depth)
        while self._token.kind == "shift":
            self._advance()
            self._term(depth)

    def _term(self, depth: int) -> None:
        self.found.terms += 1
        if self.found.terms > MAX_TERMS:
            self._refuse(f"more than {MAX_TERMS:,} terms")
        name = self._take("name", "the name of a task, or one of " + ", ".join(WORDS))
        if self._is_sign("("):
            self._control(name, depth)
        elif self._is_sign(":") and self._rules.named_nodes:
            self._advance()
            self.found.tasks.add(self._take("name", "the name of a task").text)
        else:
            self.found.tasks.add(name.text)

    def _control(self, word: _Token, depth: int) -> None:
        if word.text == "pipe":
            self._pipe()
        elif word.text in _WORDS:
            self._arguments(word)
            self._block(word.text, depth + 1)
        else:
            self._refuse(
                f"{word.text}(…) is not part of the grammar{nearest(word.text, WORDS)}; "
                f"calls are {', '.join(WORDS)}",
                word,
            )

    def _pipe(self) -> None:
        self._sign("(")
        name = self._token
        if name.kind not in ("name", "string"):
            self._refuse("pipe(…) takes the name of a pipe")
        self._advance()
        self._sign(")")
        # A reference does not count as a term; its expansion does.
        self.found.terms -= 1
        self.found.pipes.append(_inner(name))

    def _block(self, word: str, depth: int) -> None:
        self._sign("{")
        if word == "switch":
            self._cases(depth)
        else:
            self._pipeline(depth)
        self._sign("}")

    def _cases(self, depth: int) -> None:
        seen: set[str | None] = set()
        while not self._is_sign("}"):
            if self._is_sign(";"):
                self._advance()
                continue
            self._case(seen, depth)
            if not self._is_sign("}"):
                self._sign(";")
        if not seen:
            self._refuse("a switch needs at least one case")

    def _case(self, seen: set[str | None], depth: int) -> None:
        case = self._token
        if case.kind not in _VALUES:
            self._refuse("a case is a value, a colon and a pipeline")
        # 1 and "1" are the same case; `default` in quotes is an ordinary value.
        key = None if case[:2] == ("name", "default") else _inner(case)
        if key in seen:
            self._refuse(f"duplicate case {shown(_inner(case))}")
        seen.add(key)
        self._advance()
        self._sign(":")
        self._branch(depth)

    def _branch(self, depth: int) -> None:
        if self._token.kind != "string":
            self._pipeline(depth)
            return
        quoted = self._token
        place = f"{self._place}, {place_in(self._text, quoted.start)}, in quotes"
        if depth > MAX_DEPTH:
            self._refuse(f"blocks are nested more than {MAX_DEPTH} deep")
        _Parser(_inner(quoted), place, self.found, self._rules).whole(depth + 1)
        self._advance()

    def _arguments(self, word: _Token) -> None:
        """`(name=value, …)`."""
        required, optional = _WORDS[word.text]
        given: set[str] = set()
        self._sign("(")
        while not self._is_sign(")"):
            given.add(self._argument(word.text, (required, *optional), given))
            if not self._is_sign(")"):
                self._sign(",")
                if self._is_sign(")"):
                    self._refuse("an argument is missing after the comma")
        self._sign(")")
        if required not in given:
            self._refuse(f"{word.text}(…) needs {required}=", word)

    def _argument(self, word: str, known: tuple[str, ...], given: set[str]) -> str:
        name = self._take("name", "the name of an argument")
        if name.text not in known:
            self._refuse(
                f"{word}(…) has no argument {name.text!r}{nearest(name.text, known)}; "
                f"it takes {', '.join(known)}",
                name,
            )
        if name.text in given:
            self._refuse(f"duplicate argument {name.text}", name)
        self._sign("=")
        value = self._token
        if value.kind not in _VALUES:
            self._refuse(f"{name.text}= takes a name, a number, a text in quotes or {{{{an expression}}}}")
        if problem := _problem_with(name.text, value, self._rules.allowed_env):
            self._refuse(problem)
        self._advance()
        return name.text

    def _read(self) -> Iterator[_Token]:
        index = 0
        while index < len(self._text):
            match = _TOKEN.match(self._text, index)
            if match is None or match.lastgroup is None:
                token = _Token("unknown", self._text[index], index)
                self._refuse(f"{shown(token.text)} is not part of the grammar{_advice(token.text)}", token)
            token = _Token(match.lastgroup, match.group(), index)
            if token.kind == "unclosed":
                self._refuse(f"{token.text} is not closed", token)
            if token.kind == "name" and (token.text.startswith("__") or not token.text.isidentifier()):
                self._refuse(f"{shown(token.text)} is not a valid name in a graph", token)
            if token.kind != "skip":
                yield token
            index = match.end()
        yield _Token("end", "the end of the graph", len(self._text))

    def _advance(self) -> None:
        self._token = next(self._tokens)

    def _take(self, kind: str, wanted: str = ">> or the end of the graph") -> _Token:
        token = self._token
        if token.kind != kind:
            self._refuse(f"expected {wanted}, got {self._seen()}")
        if kind != "end":
            self._advance()
        return token

    def _is_sign(self, sign: str) -> bool:
        return self._token.kind == "sign" and self._token.text == sign

    def _sign(self, sign: str) -> None:
        if not self._is_sign(sign):
            self._refuse(f"expected {sign!r}, got {self._seen()}")
        self._advance()

    def _seen(self) -> str:
        return self._token.text if self._token.kind == "end" else shown(self._token.text)

    def _refuse(self, problem: str, token: _Token | None = None) -> Never:
        where = place_in(self._text, (token or self._token).start)
        raise InvalidRequest(f"{self._place}, {where}: {problem}")


def _problem_with(argument: str, value: _Token, allowed_env: tuple[str, ...] | None) -> str | None:
    text = _inner(value)
    if argument == "collect":
        return None if text in _COLLECT else f"collect= takes one of {', '.join(_COLLECT)}, not {shown(text)}"
    if argument in ("item", "index"):
        fits = text.isidentifier() and not text.startswith("__")
        return None if fits else f"{argument}= takes a name, not {shown(text)}"
    if argument == "max_iter":
        fits = value.kind == "number" and _small(text) and int(text) > 0
        return None if fits else f"max_iter= must be a number of at least 1, not {shown(text)}"
    if value.kind == "number":
        return None if argument == "count" and _small(text) else f"{argument}= cannot be {shown(text)}"
    return flow_expressions.problem_in(text, allowed_env)


def _small(digits: str) -> bool:
    return len(digits) <= 9  # noqa: PLR2004 - a thousand million rounds


def _inner(token: _Token) -> str:
    """The text inside quotes or double braces."""
    if token.kind == "string":
        return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
    return token.text[2:-2].strip() if token.kind == "template" else token.text


def _advice(character: str) -> str:
    return "; tasks are joined with >> only" if character in "><|&[" else ""
