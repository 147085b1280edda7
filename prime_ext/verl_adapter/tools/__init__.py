# SPDX-License-Identifier: Apache-2.0
"""Tools of agents, as verl's tool agent loop calls them."""
