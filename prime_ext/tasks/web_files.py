# SPDX-License-Identifier: Apache-2.0
"""Files that benchmarks publish on the web and not on the hub: fetched once and kept."""

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from prime_ext.utils.files import atomic_path
from prime_ext.utils.rows import SourceError

# Of silence on the line.
_SECONDS = 60


def web_file(address: str) -> Path:
    """The local copy of a file on the web.

    Kept below ``$XDG_CACHE_HOME/prime_ext/web``, or ``~/.cache``. Delete it there to fetch it anew.

    Raises:
        SourceError: it cannot be fetched; the message is one line and says what to do without the web.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # The addresses of two releases may end in the same name.
    name = f"{hashlib.sha256(address.encode()).hexdigest()[:12]}-{address.rpartition('/')[2]}"
    path = cache / "prime_ext" / "web" / name
    if path.is_file():
        return path
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer, atomic_path(path) as temporary:
            with temporary.open("wb") as file:
                shutil.copyfileobj(answer, file)
            wanted = answer.headers.get("Content-Length")
            if wanted is not None and temporary.stat().st_size != int(wanted):
                raise OSError(f"{temporary.stat().st_size} of {wanted} bytes came")
    except (OSError, urllib.error.URLError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SourceError(f"{address} cannot be fetched ({reason}); give local files instead") from error
    return path
