# SPDX-License-Identifier: Apache-2.0
"""docs/reference/metrics.md explains what is logged, and nothing else. Names come from the code, and from
``fixtures/logged_metrics.json``: what runs on the CPU have logged, by kind of run. The whole runs of ``tests/e2e``
compare what they log with the page as well."""

import json
from pathlib import Path

import metric_names

LOGGED = json.loads((Path(__file__).parent / "fixtures" / "logged_metrics.json").read_text())
EVERY_LOGGED = {name for names in LOGGED.values() for name in names}


def test_every_metric_of_the_code_is_on_the_page():
    assert metric_names.names_in_code() - metric_names.names_on_page() == set()


def test_every_recorded_metric_of_ours_is_on_the_page():
    assert metric_names.undocumented(EVERY_LOGGED) == []


def test_the_page_names_no_metric_that_nobody_logs():
    # Names with a part to fill in, such as a data source, are verl's and stand for many.
    named = {name for name in metric_names.names_on_page() if "<" not in name}
    assert named - metric_names.names_in_code() - EVERY_LOGGED == set()
