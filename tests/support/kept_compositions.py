# SPDX-License-Identifier: Apache-2.0
"""A cache for Hydra: hundreds of tests compose the same forty files, which takes 0.9 s each."""

import functools
import pickle
import sys

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from omegaconf import grammar_parser


def keep_compositions():
    """Make Hydra read each packaged file and compose each choice once; it sets values on copies."""
    Plugins.instance()  # registers the sources
    source = SourcesRegistry.instance().resolve("pkg")
    read = source.load_config
    compose = ConfigLoaderImpl._compose_config_from_defaults_list
    files = {}
    compositions = {}

    def load_config(self, config_path):
        key = self.path, config_path
        if key not in files:
            files[key] = pickle.dumps(read(self, config_path))
        return pickle.loads(files[key])

    def compose_from_defaults(self, defaults, repo):
        sources = [origin.full_path() for origin in repo.get_sources()]
        if not all(path.startswith(("pkg://", "structured://")) for path in sources):
            return compose(self, defaults, repo)  # files of a test's own, which it may rewrite
        key = repr(defaults), *sources
        if key not in compositions:
            compositions[key] = pickle.dumps(compose(self, defaults, repo))
        return pickle.loads(compositions[key])  # six times as fast as a deep copy

    source.load_config = load_config
    ConfigLoaderImpl._compose_config_from_defaults_list = compose_from_defaults
    parse = grammar_parser.parse
    for module in [module for name, module in sys.modules.items() if name.startswith("omegaconf")]:
        if getattr(module, "parse", None) is parse:
            module.parse = functools.cache(parse)
