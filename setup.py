# SPDX-License-Identifier: Apache-2.0
"""Packages of the wheel; pyproject.toml has all else.

The folders eval and data_preprocessing of the repository are prime_ext.evaluation and
prime_ext.data there, so that nothing else is installed at the top.
"""

from setuptools import find_packages, setup

FOLDERS = {"prime_ext.evaluation": "eval", "prime_ext.data": "data_preprocessing"}

setup(packages=[*find_packages(include=["prime_ext*"]), *FOLDERS], package_dir=FOLDERS)
