"""Texts in the two languages of the product."""

from typing import Literal, NamedTuple

Language = Literal["en", "ja"]

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


class Said(NamedTuple):
    """A text in both languages, with its values. Of these, floats are seconds."""

    en: str
    ja: str
    values: dict[str, object] = {}  # noqa: RUF012 - never changed

    def of(self, **values: object) -> "Said":
        return self._replace(values=values)

    def in_(self, language: Language) -> str:
        values = {name: _shown(value, language) for name, value in self.values.items()}
        return (self.ja if language == "ja" else self.en).format(**values)


NOTHING = Said("", "")


def raw(text: str) -> Said:
    """A text of others, the same in every language."""
    return Said("{text}", "{text}").of(text=text)


def _shown(value: object, language: Language) -> object:
    if isinstance(value, Said):
        return value.in_(language)
    return duration(value, language) if isinstance(value, float) else value


def duration(seconds: float, language: Language) -> str:
    """Its two largest units, e.g. `2 h 5 min`."""
    left = max(0, round(seconds))
    found: list[tuple[int, int]] = []
    for unit in (_DAY, _HOUR, _MINUTE, 1):
        count, left = divmod(left, unit)
        if count or found:
            found.append((count, unit))
    named = [f"{count}{_UNITS[language][unit]}" for count, unit in found[:2] if count]
    return _JOINED[language].join(named) or f"0{_UNITS[language][1]}"


_UNITS = {
    "en": {_DAY: " d", _HOUR: " h", _MINUTE: " min", 1: " s"},
    "ja": {_DAY: "日", _HOUR: "時間", _MINUTE: "分", 1: "秒"},
}
_JOINED = {"en": " ", "ja": ""}
