# SPDX-License-Identifier: Apache-2.0
"""The system calls that a program may make; all others, also of future kernels, fail with EPERM.

Left out on purpose: exec, fork, vfork, kill in every form, sockets, ptrace, mount, bpf, io_uring,
keyrings, namespaces, memfd_create, userfaultfd, pidfds, process_vm_*, inotify, and changes of a
file's owner, mode, times or extended attributes, which Landlock does not govern. clone3 answers
ENOSYS, so that libc falls back to clone, whose flags a filter can read: threads pass, processes do
not.
"""

import ctypes
import errno
import os

_CLONE_THREAD = 0x10000
_PR_SET_NAME = 15
_PR_GET_NAME = 16
_PR_SET_VMA = 0x53564D41
_FIOCLEX = 0x5451
_FIONCLEX = 0x5450
_FIONBIO = 0x5421
_FIONREAD = 0x541B
_TCGETS = 0x5401
_TIOCGWINSZ = 0x5413
# duplicate, flags, record locks; no F_SETOWN, no F_SETSIG
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
_AF_UNIX = 1
_SOCK_TYPE_MASK = 0xF

ALWAYS = (
    # files
    "read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "pwritev", "close",
    "close_range", "lseek", "creat", "stat", "lstat", "fstat", "newfstatat", "statx", "statfs",
    "fstatfs", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents64",
    "getcwd", "chdir", "fchdir", "unlink", "unlinkat", "rename", "renameat", "renameat2",
    "ftruncate", "fallocate", "fsync", "fdatasync", "flock", "umask", "dup", "dup2", "dup3", "pipe",
    "pipe2", "sendfile", "copy_file_range", "fadvise64",
    # waiting
    "select", "pselect6", "poll", "ppoll", "epoll_create", "epoll_create1", "epoll_ctl",
    "epoll_wait", "epoll_pwait", "eventfd2", "nanosleep", "clock_nanosleep", "pause", "alarm",
    "setitimer", "getitimer",
    # memory
    "brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "mincore", "msync", "membarrier",
    # threads and signals of the process itself
    "futex", "set_robust_list", "get_robust_list", "set_tid_address", "rseq", "sched_yield",
    "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_get_priority_max",
    "sched_get_priority_min", "getcpu", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
    "rt_sigpending", "rt_sigtimedwait", "rt_sigsuspend", "sigaltstack", "restart_syscall", "exit",
    "exit_group", "arch_prctl",
    # questions
    "getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getresuid",
    "getresgid", "getgroups", "getpgid", "getpgrp", "getsid", "getpriority", "getrlimit",
    "getrusage", "times", "time", "gettimeofday", "clock_gettime", "clock_getres", "uname",
    "sysinfo", "getrandom", "capget",
    # an established pipe of asyncio
    "shutdown", "getsockname", "getpeername", "getsockopt",
)  # fmt: skip


def build() -> bytes:
    """Return the filter as BPF. Raises ImportError, RuntimeError: no pyseccomp, no libseccomp."""
    # In the client, so that no run carries libseccomp.
    import pyseccomp
    from pyseccomp import EQ, MASKED_EQ, Arg

    filter_ = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
    # A binary search over the call numbers instead of a list.
    filter_.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)
    filter_.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)

    def rule(name: str, *conditions: Arg, action: int = pyseccomp.ALLOW) -> None:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        # This architecture has no such call (open and stat on ARM64).
        if number is None or ctypes.c_int(number).value < 0:
            return
        filter_.add_rule(action, number, *conditions)

    for name in ALWAYS:
        rule(name)
    # Kernels below Landlock ABI 3 would let O_TRUNC empty a file that may only be read.
    truncating = os.O_TRUNC
    access_mode = os.O_ACCMODE
    for name, position in (("open", 1), ("openat", 2)):
        rule(name, Arg(position, MASKED_EQ, truncating, 0))
        for mode in (os.O_WRONLY, os.O_RDWR):
            rule(name, Arg(position, MASKED_EQ, truncating | access_mode, truncating | mode))
    rule("clone", Arg(0, MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))
    rule("clone3", action=pyseccomp.ERRNO(errno.ENOSYS))
    for option in (_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA):
        rule("prctl", Arg(0, EQ, option))
    for command in _FCNTL_COMMANDS:
        rule("fcntl", Arg(1, EQ, command))
    for request in (_FIOCLEX, _FIONCLEX, _FIONBIO, _FIONREAD, _TCGETS, _TIOCGWINSZ):
        rule("ioctl", Arg(1, MASKED_EQ, 0xFFFFFFFF, request))
    # Limits of the process itself; without capabilities they can only fall.
    rule("prlimit64", Arg(0, EQ, 0))
    # asyncio wakes itself through a pair of connected stream sockets. Nothing can be addressed with
    # one.
    rule("socketpair", Arg(0, EQ, _AF_UNIX), Arg(1, MASKED_EQ, _SOCK_TYPE_MASK, 1))
    rule("sendto", Arg(4, EQ, 0))
    rule("recvfrom", Arg(4, EQ, 0))
    with open(os.memfd_create("filter"), "w+b") as file:
        filter_.export_bpf(file)
        file.seek(0)
        return file.read()
