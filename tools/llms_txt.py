"""`python -m tools.llms_txt`: an index of the built site as plain text, for language models (llmstxt.org).

It is made of the navigation: one line per page with its first sentence. It links to the Markdown
of the pages, which is copied into the site.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "site"

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END = re.compile(r"[.:](?=\s|$)")


def index() -> str:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return f"# {config['site_name']}\n\n> {config['site_description']}\n" + "".join(_lines(config["nav"]))


def _lines(nav: list[dict[str, Any]]) -> Iterator[str]:
    """Pages without a section come first: below a heading they would seem to belong to it."""
    entries = [item for entry in nav for item in entry.items()]
    yield "\n"
    yield from (_line(title, page) for title, page in entries if isinstance(page, str))
    for title, pages in entries:
        if not isinstance(pages, str):
            yield f"\n## {title}\n\n"
            yield from (_line(name, page) for entry in pages for name, page in entry.items())


def _line(title: str, page: str) -> str:
    return f"- [{title}]({page}): {summary((DOCS / page).read_text())}\n"


def summary(markdown: str) -> str:
    """The first sentence, which is right below the title."""
    _title, first, *_ = _COMMENT.sub("", markdown).strip().split("\n\n", 2)
    line = _LINK.sub(r"\1", " ".join(first.split())).replace("**", "")
    end = _SENTENCE_END.search(line)
    return line[: end.start()] + "." if end else line


def write(site: Path) -> None:
    (site / "llms.txt").write_text(index())
    for page in DOCS.rglob("*.md"):
        target = site / page.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)


if __name__ == "__main__":
    write(SITE)
