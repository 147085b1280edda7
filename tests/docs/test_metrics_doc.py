# SPDX-License-Identifier: Apache-2.0
"""docs/reference/metrics.md explains what runs log, and only metrics that prime_ext names.

Runs on the CPU have logged ``fixtures/logged_metrics.json``. The whole runs of ``tests/e2e`` also
compare what they log with the page.
"""

import json
from pathlib import Path

import metric_names

LOGGED = json.loads((Path(__file__).parent / "fixtures" / "logged_metrics.json").read_text())
EVERY_LOGGED = {name for names in LOGGED.values() for name in names}


def test_the_page_explains_what_is_logged_and_nothing_else():
    assert metric_names.undocumented(EVERY_LOGGED) == []
    code = "\n".join(
        path.read_text() for path in Path(metric_names.PAGE.parents[2] / "prime_ext").rglob("*.py")
    )
    # Names with a part to fill in, such as a data source, stand for many; the code puts others
    # together of their words.
    named = {name for name in metric_names.names_on_page() - EVERY_LOGGED if "<" not in name}
    assert [
        name
        for name in named
        if not all(word in code for word in name.replace("/", "_").split("_"))
    ] == []
