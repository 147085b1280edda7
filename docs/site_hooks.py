# SPDX-License-Identifier: Apache-2.0
"""Hooks of ``mkdocs build`` that add linked files of the repository, and pages of modules.

A file outside docs/ that a page links to is added to the site: Markdown as a page whose own links
work too, text as a page that shows it, a folder as a list of its files, anything else as it is.
Pages of the API are made from docstrings. Equations, LaTeX in blocks ``math`` as GitHub shows them,
become MathML, which browsers draw without a script.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
# Where files from outside docs/ are on the site.
REPOSITORY = "repository/"
# Public modules; a package stands for all its modules.
API = (
    "prime_ext.algorithms",
    "prime_ext.methods",
    "prime_ext.tasks",
    "prime_ext.verifiers.verdict",
    "prime_ext.verifiers.sandbox",
    "prime_ext.verl_adapter.tool_agent_loop",
)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MATH = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r":(?:func|class|data|mod|meth|attr):<code>~?(?:[\w.]+\.)?([\w]+)</code>")


def get_place(path: str) -> str:
    """Return where a file or folder of the repository is in the site's sources."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path.endswith(".md") or (ROOT / path).suffix in (".png", ".jpg", ".svg"):
        return REPOSITORY + path
    return f"{REPOSITORY}{path.rstrip('/')}.md"


def get_path(place: str) -> str:
    """Return the path in the repository of a page of the site, for Markdown."""
    return place.removeprefix(REPOSITORY) if place.startswith(REPOSITORY) else DOCS + place


def links(text: str, path: str) -> Iterator[str]:
    """Yield the files and folders outside docs/ that a page links to."""
    for match in LINK.finditer(CODE.sub("", text)):
        target = resolved(match[2], path)
        if target is not None and not target.startswith(DOCS):
            yield target


def resolved(link: str, path: str) -> str | None:
    """Return a link of a page as a path of the repository; None if it does not lead to one."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(path), link))
    return target if not target.startswith("..") and (ROOT / target).exists() else None


def shown(path: str) -> str:
    """Return the page of a text file or folder."""
    if (ROOT / path).is_dir():
        listed = subprocess.run(
            ["git", "ls-files", path], cwd=ROOT, capture_output=True, text=True, check=True
        )
        names = listed.stdout.split("\n")[:-1]
        return (
            f"# {path}/\n\n"
            + "\n".join(f"- `{name.removeprefix(path + '/')}`" for name in names)
            + "\n"
        )
    language = {".py": "python", ".yaml": "yaml", ".json": "json"}.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text()}\n````\n"


def draw_equations(latex: str) -> str:
    """Return LaTeX as a block of MathML on one line, which Markdown leaves alone.

    Raises ValueError: the converter does not know an environment, whose signs would remain.
    """
    drawn = convert(" ".join(latex.split()), display="block")
    if "<mi>&</mi>" in drawn or "<mi>\\" in drawn:
        raise ValueError(f"latex2mathml does not understand all of {latex}")
    return f"<div>{drawn}</div>"


def modules() -> list[str]:
    """Return the modules of :data:`API`."""
    names = []
    for name in API:
        place = ROOT / name.replace(".", "/")
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        names += [
            ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for file in files
            if file.stem[0] != "_"
        ]
    return names


def on_config(config: Any) -> Any:
    """Return the pages of the API in the navigation."""
    pages: dict[str, list[dict[str, str]]] = {}
    for name in modules():
        package, _, module = name.removeprefix("prime_ext.").rpartition(".")
        pages.setdefault(package, []).append({module: f"api/{name}.md"})
    grouped = [{package: of_package} for package, of_package in pages.items()]

    def put(entries: Any) -> Any:
        if isinstance(entries, list):
            return [put(entry) for entry in entries]
        if isinstance(entries, dict):
            return {
                key: grouped if value == "api/" else put(value) for key, value in entries.items()
            }
        return entries

    config.nav = put(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Bring in what pages link to, and the pages of the API."""
    waiting = [
        (file.content_string, DOCS + file.src_uri) for file in files if file.src_uri.endswith(".md")
    ]
    waiting.append(("[README](README.md)", "README.md"))
    known = set()
    while waiting:
        for path in links(*waiting.pop()):
            if path in known:
                continue
            known.add(path)
            place = get_place(path)
            if path.endswith(".md"):
                text = (ROOT / path).read_text()
                waiting.append((text, path))
                files.append(File.generated(config, place, content=text))
            elif place.endswith(".md"):
                files.append(File.generated(config, place, content=shown(path)))
            else:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for name in modules():
        files.append(File.generated(config, f"api/{name}.md", content=f"::: {name}\n"))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with links that work on the site."""
    path = get_path(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        target = resolved(found[2], path)
        if target is None:
            return found[0]
        link = os.path.relpath(get_place(target), os.path.dirname(page.file.src_uri) or ".")
        return f"{found[1]}{link}{found[3] or ''}{found[4]}"

    if page.file.src_uri.startswith("api/"):
        return markdown
    markdown = MATH.sub(lambda block: draw_equations(block[1]), markdown)
    parts = []
    last = 0
    for block in CODE.finditer(markdown):
        parts += [LINK.sub(rewritten, markdown[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, LINK.sub(rewritten, markdown[last:])])


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Show the Sphinx roles of docstrings as code on pages of the API."""
    return ROLE.sub(r"<code>\1</code>", html) if page.file.src_uri.startswith("api/") else html
