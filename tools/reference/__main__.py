"""`python -m tools.reference`: write the reference pages that are not as the code wants them."""

from tools.reference import DOCS, PAGES, current, written

for name in PAGES:
    text = written(name)
    if text != current(name):
        (DOCS / name).write_text(text)
        print(f"written: docs/{name}")
