# SPDX-License-Identifier: Apache-2.0
"""Where verl and prime_ext meet: the trainers that verl finds by name, and a table of all patches, README.md."""
