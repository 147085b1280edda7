# SPDX-License-Identifier: Apache-2.0
"""Reader of a page of transcripts: the texts and numbers that a browser would show."""

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class ShownResponse:
    """A response as it is shown: its text, and what a reader sees at each token."""

    text: str = ""
    notes: list[list[str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)

    def numbers(self, name: str) -> list[str]:
        """Return the number of this name at each token, empty without one."""
        found = []
        for notes in self.notes:
            match = [note.removeprefix(f"{name} ") for note in notes if note.startswith(f"{name} ")]
            found.append(match[0] if match else "")
        return found

    def notes_with(self, start: str) -> list[str]:
        """Return all notes that begin so."""
        return [note for notes in self.notes for note in notes if note.startswith(start)]


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.responses: list[ShownResponse] = []
        self.tags: set[str] = set()
        self._inside = ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        known = dict(attrs)
        if tag == "div" and known.get("class") == "text":
            self.responses.append(ShownResponse())
        if tag == "i" and "data-v" in known:
            notes = known["data-v"].split(" · ")
            self.responses[-1].notes.append([note.replace("\u00a0", " ") for note in notes])
            self.responses[-1].classes.append(known.get("class", ""))
            self._inside = "i"
        elif tag == "s":
            self._inside = "s"

    def handle_endtag(self, tag):
        self._inside = "i" if tag == "s" else "" if tag == "i" else self._inside

    def handle_data(self, data):
        if self._inside == "i":
            self.responses[-1].text += data


def read_responses(page: str) -> list[ShownResponse]:
    """Return the responses of a page."""
    reader = _Reader()
    reader.feed(page)
    return reader.responses


def read_tags(page: str) -> set[str]:
    """Return the names of all elements."""
    reader = _Reader()
    reader.feed(page)
    return reader.tags
