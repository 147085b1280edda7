# SPDX-License-Identifier: Apache-2.0
"""Landlock: the program may read the Python installation and write one directory, whoever runs it.

Three system calls, made through ctypes because no library in use offers them. Landlock needs no privileges and no
namespaces. What a kernel can do is its ABI number: 1 files (5.13), 2 links, 3 truncation (6.2), 4 TCP (6.7), 5 device
ioctls, 6 signals and abstract sockets (6.12). Source: the kernel's ``include/uapi/linux/landlock.h``.
"""

import ctypes
import os
import struct
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_REGULAR = 1 << 8
TRUNCATE = 1 << 14

# The file rights that each ABI can refuse: bits 0 to 12, then refer, truncate and device ioctl.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP_RIGHTS = 0b11  # bind, connect
_SCOPES = 0b11  # abstract unix sockets, signals

READ = READ_FILE | READ_DIR
# No directories, links, pipes, sockets or devices: the working directory stays flat and is quickly removed.
WORK = READ | WRITE_FILE | MAKE_REGULAR | REMOVE_FILE | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE

_ATTRIBUTES, _RULE = struct.Struct("QQQ"), struct.Struct("=Qi")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock system call {number}: {os.strerror(error)}")
    return result


def abi() -> int:
    """Return the kernel's Landlock ABI, 0 if it has none or has it switched off."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def restrict(version: int, rules: Sequence[tuple[int, int]]) -> None:
    """Confine this thread, for ever: it may do only what ``rules`` allow, no TCP, and signal only its own kind.

    ``rules``: pairs of an ``O_PATH`` descriptor and the rights below it. NO_NEW_PRIVS must be set.

    Raises:
        OSError: the kernel refused.
    """
    handled = _FILE_RIGHTS[min(version, 5)]
    attributes = _ATTRIBUTES.pack(handled, _TCP_RIGHTS if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    # Older kernels reject the fields that they do not know, unless these are zero.
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for descriptor, rights in rules:
            rule = _RULE.pack(rights & handled, descriptor)
            _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
