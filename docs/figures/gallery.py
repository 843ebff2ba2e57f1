"""The pictures of docs/gallery.md, made by the commands that stand there.

    python docs/figures/gallery.py FOLDER docs/images [WORD ...]

Runs the commands in FOLDER as they are printed, of the sections whose headings contain one of the words (all without
one); runs that FOLDER has already are kept. What a command writes as `gallery-*.png` goes to `docs/images`, in at most
256 colours: a fourth of the bytes, and nothing to be seen of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

from PIL import Image

from bnnzoo import cli

PAGE = Path(__file__).parents[1] / "gallery.md"


def commands(page: str) -> dict[str, list[list[str]]]:
    """The arguments of the `bnnzoo` commands of every section."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    joined = {text.partition("\n")[0]: text.replace("\\\n", " ") for text in sections}
    return {
        heading: [shlex.split(line)[1:] for line in re.findall(r"^ {4}(bnnzoo .*)$", text, re.MULTILINE)]
        for heading, text in joined.items()
    }


def run(words: list[str], images: Path) -> None:
    out = Path(words[words.index("-o") + 1])
    if words[0] == "sample" and out.exists():
        return
    started = time.perf_counter()
    if failed := cli.run([*words, "--force", *(["--quiet"] if words[0] == "sample" else [])]):
        raise SystemExit(failed)
    print(f"{time.perf_counter() - started:.0f} s: bnnzoo {shlex.join(words)}", flush=True)
    if out.name.startswith("gallery-"):
        with Image.open(out) as picture:
            picture.convert("RGB").quantize(256).save(images / out.name, optimize=True)


def main(folder: Path, images: Path, *chosen: str) -> None:
    found = commands(PAGE.read_text(encoding="utf-8"))
    outputs = Counter(words[words.index("-o") + 1] for lines in found.values() for words in lines)
    if repeated := [name for name, count in outputs.items() if count > 1]:
        raise SystemExit(f"{PAGE}: several commands write {', '.join(repeated)}; use different names")
    images = images.resolve()
    with contextlib.chdir(folder):
        for heading, lines in found.items():
            if not chosen or any(word in heading for word in chosen):
                for words in lines:
                    run(words, images)


if __name__ == "__main__":
    os.environ.setdefault("BNNZOO_DISABLE_PLUGINS", "1")
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
