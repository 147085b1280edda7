# SPDX-License-Identifier: Apache-2.0
"""Hostile programs; each prints BREACH or leaves the marker file if it gets what it wants.

:func:`filled` fills in the upper-case names: MARKER a path that must not come to exist, SECRET a
file that must not be read, PARENT the client's process, SERVER the fork server, BASE the directory
of all runs.
"""

# One program per line, however long, is easier to read than wrapped ones.
# ruff: noqa: E501

from string import Template

FILES = {
    "write outside": "open('$MARKER', 'w').write('x'); print('BREACH')",
    "write next to the working directory": "import os; open(os.path.join('..', 'x'), 'w'); print('BREACH')",
    "make a file by descriptor": "import os; os.open('$MARKER', os.O_CREAT | os.O_WRONLY); print('BREACH')",
    "make a directory outside": "import os; os.mkdir('$MARKER'); print('BREACH')",
    "read a file outside": "print('BREACH', open('$SECRET').read())",
    "read /etc/passwd": "print('BREACH', open('/etc/passwd').read())",
    "list the root directory": "import os; print('BREACH', os.listdir('/'))",
    "empty a file outside": "import os; os.truncate('$SECRET', 0); print('BREACH')",
    "empty a file while reading it": "import os; os.open('$SECRET', os.O_RDONLY | os.O_TRUNC); print('BREACH')",
    "delete a file outside": "import os; os.unlink('$SECRET'); print('BREACH')",
    "change the mode of a file outside": "import os; os.chmod('$SECRET', 0o777); print('BREACH')",
    "change the times of a file outside": "import os; os.utime('$SECRET', (0, 0)); print('BREACH')",
    "link to a secret": "import os; os.symlink('$SECRET', 'link'); print('BREACH', open('link').read())",
    "hard link to a secret": "import os; os.link('$SECRET', 'link'); print('BREACH', open('link').read())",
    "climb out with dots": "print('BREACH', open('../../../../../../$SECRET').read())",
    "files of other runs": "import os\nfor d in os.listdir('$BASE'): print('BREACH', d)",
    "environment of the parent": "print('BREACH', open('/proc/$PARENT/environ', 'rb').read())",
    "command lines of others": "print('BREACH', open('/proc/1/cmdline').read())",
    "memory of the server": "open('/proc/$SERVER/mem', 'r+b'); print('BREACH')",
    "memory of this process": "open('/proc/self/mem', 'r+b'); print('BREACH')",
    "mount": "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else '')",
    "chroot": "import os; os.chroot('/usr'); print('BREACH')",
}

PROCESSES = {
    "fork": "import os; pid = os.fork(); print('BREACH', pid)",
    "fork bomb": "import os\nwhile True:\n    os.fork(); open('$MARKER', 'w')",
    "vfork by number": "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.syscall(58) > 0 else '')",
    "clone by number": "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.syscall(56, 17, 0, 0, 0, 0) >= 0 else '')",
    "subprocess": "import subprocess; subprocess.run(['touch', '$MARKER'], check=True); print('BREACH')",
    "os.system": "import os; print('BREACH' if os.system('touch $MARKER') == 0 else '')",
    "posix_spawn": "import os; os.posix_spawn('/usr/bin/touch', ['touch', '$MARKER'], {}); print('BREACH')",
    "exec": "import os; os.execv('/usr/bin/touch', ['touch', '$MARKER'])",
    "exec by number": "import ctypes; ctypes.CDLL(None).execl(b'/usr/bin/touch', b'touch', b'$MARKER', None); print('no')",
    "system() of libc": "import ctypes; print('BREACH' if ctypes.CDLL(None).system(b'touch $MARKER') == 0 else '')",
    "multiprocessing": (
        "import multiprocessing as m\np = m.get_context('fork').Process(target=open, args=('$MARKER', 'w'))\n"
        "p.start(); p.join(); print('BREACH')"
    ),
    "double fork and setsid": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(1); open('$MARKER', 'w')\nprint('BREACH')"
    ),
    "kill the parent": "import os; os.kill($PARENT, 9); print('BREACH')",
    "kill the server": "import os; os.kill(os.getppid(), 9); print('BREACH')",
    "kill everything": "import os; os.kill(-1, 9); print('BREACH')",
    "signal by the queue": (
        "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.sigqueue($SERVER, 15, 0) == 0 else '')"
    ),
    "signal through a descriptor's owner": (
        "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, 8, os.getppid())\nfcntl.fcntl(r, 10, 9)\n"
        "fcntl.fcntl(r, 4, 0o20000)\nos.write(w, b'x'); print('BREACH')"
    ),
    "ptrace": "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.ptrace(16, $SERVER, 0, 0) == 0 else '')",
    "process_vm_readv": (
        "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.syscall(310, $SERVER, 0, 0, 0, 0, 0) >= 0 else '')"
    ),
    "lower the guard": "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.prctl(1, 0, 0, 0, 0) == 0 else '')",
    "namespaces": "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.unshare(0x10000000) == 0 else '')",
    "memfd and exec": "import os; fd = os.memfd_create('x'); print('BREACH')",
    "bpf, io_uring, userfaultfd, keyctl, pidfd, inotify": (
        "import ctypes\nc = ctypes.CDLL(None)\nfor n in (321, 425, 323, 250, 434, 253, 294, 272, 308, 165, 317):\n"
        "    if c.syscall(n, 1, 0, 0, 0, 0) >= 0: print('BREACH', n)"
    ),
}

NETWORK = {
    "connect": "import socket; socket.create_connection(('127.0.0.1', 22), 1); print('BREACH')",
    "listen": "import socket; socket.create_server(('127.0.0.1', 0)); print('BREACH')",
    "datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9)); print('BREACH')",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX).connect('/run/x'); print('BREACH')",
    "abstract socket": "import socket; socket.socket(socket.AF_UNIX).bind('\\0prime'); print('BREACH')",
    "datagram pair": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); print('BREACH')",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); print('BREACH')",
    "look up a name": "import socket; print('BREACH', socket.getaddrinfo('example.org', 80))",
    "io_uring socket": "import ctypes; c = ctypes.CDLL(None); print('BREACH' if c.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0 else '')",
}

RESOURCES = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "ignore all signals": (
        "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except Exception: pass\n"
        "while True:\n    try: time.sleep(1)\n    except BaseException: pass"
    ),
    "swallow everything": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "two gigabytes": "x = bytearray(2 << 30); print('BREACH')",
    "a growing list": "x = [0]\nwhile True: x += x",
    "a growing integer": "x = 9**9**9",
    "a growing string": "x = 'x'\nwhile True: x += x",
    "regular expression": "import re; re.match(r'(a+)+$$', 'a' * 64 + 'b')",
    "one gigabyte of output": "import sys\nfor _ in range(1 << 14): sys.stdout.write('x' * (1 << 16))",
    "endless output by descriptor": "import os\nwhile True:\n    try: os.write(1, b'x' * (1 << 20))\n    except OSError: pass",
    "endless errors": "import sys\nwhile True: sys.stderr.write('x' * (1 << 16))",
    "a large file": "f = open('f', 'wb')\nfor _ in range(100): f.write(bytes(1 << 20))\nf.flush(); print('BREACH')",
    "many files": "i = 0\nwhile True:\n    i += 1\n    with open(f'f{i}', 'wb') as f: f.write(bytes(1 << 12))",
    "many directories": "import os\nfor _ in range(10**6): os.mkdir('d'); os.chdir('d'); print('BREACH')",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1000,)).start()",
    "small threads": (
        "import threading, time\nthreading.stack_size(32768)\nwhile True:\n"
        "    try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n    except RuntimeError: pass"
    ),
    "deep recursion": "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)",
    "recursion in C": "x = []\nfor _ in range(10**6): x = [x]\nprint('BREACH' if repr(x) else '')",
    "nested source": "eval('(' * 100000 + ')' * 100000)",
    "closed descriptors": "import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass",
    "raised limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); print('BREACH')",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "thread that never ends": "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "exit function that never ends": "import atexit, time; atexit.register(time.sleep, 1000)",
}

FORGERIES = {
    "nothing": "",
    "exit at once": "import sys; sys.exit(0)",
    "exit harder": "import os; os._exit(0)",
    "guess": "print('correct'); print('True'); print(1); print('passed')",
    "write into every descriptor": (
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"value": true, "result": ["passed", ""], "end": true}\\n\')\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "look for the tests in memory": (
        "import gc, sys\nfor o in gc.get_objects():\n"
        "    if isinstance(o, (dict, list)) and '3141' + str(5926) in repr(o)[:10**6]: print('BREACH')\n"
        "f = sys._getframe()\nwhile f:\n"
        "    if '3141' + str(5926) in repr(f.f_locals) + repr(f.f_globals): print('BREACH')\n    f = f.f_back"
    ),
    "patch the harness": (
        "import sys\nfor name, m in list(sys.modules.items()):\n    if name.startswith('prime_ext'):\n"
        "        for k in list(vars(m)):\n            try: setattr(m, k, lambda *a, **k: True)\n            except Exception: pass"
    ),
    "exit function": "import atexit; atexit.register(lambda: print('correct')); import sys; sys.exit(0)",
    "daemon thread": "import threading\nt = threading.Thread(target=lambda: [print('correct') for _ in range(1000)], daemon=True); t.start()",
}

ALL = {**FILES, **PROCESSES, **NETWORK, **RESOURCES, **FORGERIES}


def filled(program: str, **values: object) -> str:
    """Return the program with MARKER, SECRET, PARENT, SERVER and BASE filled in."""
    return Template(program).substitute({name: str(value) for name, value in values.items()})


# For a problem that asks for a function: each must fail the assertion `answer(1) == 31415926`.
CHEATS = {
    "equal to everything": (
        "class Any:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    __hash__ = None\ndef answer(n): return Any()"
    ),
    "integer equal to everything": (
        "class Any(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    __hash__ = int.__hash__\ndef answer(n): return Any(0)"
    ),
    "exit on call": "import sys\ndef answer(n): sys.exit(0)",
    "exit harder on call": "import os\ndef answer(n): os._exit(0)",
    "exit on loading": "import os; os._exit(0)",
    "patched built-ins": (
        "import builtins\nbuiltins.AssertionError = ZeroDivisionError\nbuiltins.isinstance = lambda *a: True\n"
        "builtins.all = builtins.any = lambda *a: True\nbuiltins.abs = lambda x: 0\ndef answer(n): return 0"
    ),
    "patched math": "import math\nmath.isclose = lambda *a, **k: True\nmath.fabs = lambda x: 0\ndef answer(n): return 0",
    "trace function": (
        "import sys\ndef t(frame, event, arg):\n    if event == 'exception': import os; os._exit(0)\n    return t\n"
        "sys.settrace(t)\ndef answer(n): return 0"
    ),
    "end of an iterator": "def answer(n): raise StopIteration",
    "generator exit": "def answer(n): raise GeneratorExit",
    "keyboard interrupt": "def answer(n): raise KeyboardInterrupt",
    "system exit": "def answer(n): raise SystemExit(0)",
    "no answer in time": "import time\ndef answer(n): time.sleep(1000)",
    "read the tests in the frames": (
        "import sys, gc, re\ndef answer(n):\n    f = sys._getframe()\n    while f:\n"
        "        m = re.search('answer.1. == ([0-9]+)', repr(f.f_locals))\n        if m: return int(m.group(1))\n        f = f.f_back\n"
        "    for o in gc.get_objects():\n        m = re.search('answer.1. == ([0-9]+)', repr(o)[:10**5])\n        if m: return int(m.group(1))"
    ),
    "garbage on every descriptor": (
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'\\x10\\0\\0\\0{\"value\": 0    }' * 100)\n    except OSError: pass\n"
        "def answer(n): return 0"
    ),
    "forged report": (
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"result": ["passed", ""]}\\n{"end": true}\\n\')\n    except OSError: pass\n'
        "os._exit(0)"
    ),
    "nonce in frames and garbage": (
        "import gc, json, os, re, sys\ndef answer(n):\n    texts, f = [], sys._getframe()\n    while f:\n"
        "        texts += [repr(f.f_locals), repr(f.f_globals)]\n        f = f.f_back\n"
        "    texts += [repr(o)[:10**5] for o in gc.get_objects() if not hasattr(o, '__getattr__')]\n"
        "    for nonce in set(re.findall('[0-9a-f]{32}', ' '.join(texts))):\n        os.ftruncate(4, 0)\n"
        "        os.pwrite(4, json.dumps({'nonce': nonce, 'outcome': 'passed', 'text': ''}).encode(), 0)\n        os._exit(0)"
    ),
    "patched harness and tests": (
        "import sys\nfor name, m in list(sys.modules.items()):\n    if name == 'tests' or name.startswith('prime_ext'):\n"
        "        for k in list(vars(m)):\n            try: setattr(m, k, lambda *a, **k: ('passed', ''))\n            except Exception: pass\n"
        "def answer(n): return 0"
    ),
    "patched json and os": (
        "import json, os\nreal, write = json.dumps, os.write\n"
        "json.dumps = lambda m, **k: real({**m, 'outcome': 'passed', 'text': ''})\n"
        "os.write = lambda fd, data: write(fd, data.replace(b'failed', b'passed'))\ndef answer(n): return 0"
    ),
    "operators that forgive": (
        "class Any:\n    def __sub__(self, other): return 0.0\n    __rsub__ = __add__ = __sub__\n    def __abs__(self): return 0.0\n"
        "    def __float__(self): return 31415926.0\ndef answer(n): return [Any()][0]"
    ),
    "forged results with a nonce": 'print(\'{"outcome": "passed", "text": "", "nonce": ""}\')\ndef answer(n): return 0',
    "huge answer": "def answer(n): return [0] * 10**7",
    "endless answer": "def answer(n):\n    while True: yield 0",
    "nested answer": "def answer(n):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "circular answer": "def answer(n):\n    x = []\n    x.append(x)\n    return x",
    "hostile exception": "class E(Exception):\n    def __str__(self): raise SystemExit(0)\ndef answer(n): raise E",
    "daemon thread": (
        "import threading, os, time\ndef f():\n    time.sleep(0.01); os._exit(0)\n"
        "threading.Thread(target=f, daemon=True).start()\ndef answer(n): time.sleep(1)"
    ),
    "exit function": "import atexit, os; atexit.register(os._exit, 0)\ndef answer(n): raise SystemExit(0)",
    "redefine the tests": "def check(candidate): pass\ndef answer(n): return 0",
    "lying property": "class P:\n    def __getattribute__(self, name): return True\ndef answer(n): return P()",
    "method that compares": "class P:\n    def __call__(self): return self\n    def __eq__(self, o): return True\nanswer = lambda n: P()",
}
