"""Ctrl-C: held back for moments, and heard by waits that are not in the main thread."""

import subprocess
import sys

from mpi import environment


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_interrupt_is_held_back_whatever_thread_the_signal_comes_to():
    said = _run("""
import os, signal, threading, time
from hvdlite.waiting.signals import undisturbed

threading.Thread(target=time.sleep, args=(1,)).start()  # which does not block the signal
try:
    with undisturbed(), undisturbed():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        print("completed")
    print("never comes here")
except KeyboardInterrupt:
    print("then interrupted")
with undisturbed():
    pass
""")
    assert said == "completed\nthen interrupted\n"


def test_all_waits_end_while_the_main_thread_is_in_foreign_code():
    """As in a graph of TensorFlow's; also those that begin when the signal has come."""
    said = _run("""
import ctypes, os, signal, threading, time
from hvdlite.waiting import signals
from hvdlite.waiting.wait import Patience

signals.watch()
ended = []

def wait(after):
    time.sleep(after)
    patience = Patience()
    try:
        while patience.pause() < 60:
            pass
    except KeyboardInterrupt:
        ended.append(after)

def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

waits = [threading.Thread(target=wait, args=(after,)) for after in (0, 0.1, 1.2)]
for thread in [*waits, threading.Thread(target=interrupt)]:
    thread.start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # it comes by another thread
try:
    ctypes.CDLL(None).sleep(3)
    time.sleep(0.1)
except KeyboardInterrupt:
    print("and now the main thread, after", sorted(ended))
""")
    assert said == "and now the main thread, after [0, 0.1, 1.2]\n"


def test_a_signal_that_the_main_thread_has_handled_ends_no_later_wait():
    """Also where the thread that listens for signals comes late."""
    said = _run("""
import ctypes, os, signal, sys, threading, time
from hvdlite.waiting import signals
from hvdlite.waiting.wait import Patience

def wait():
    begin.wait()
    patience = Patience()
    while patience.pause() < 0.5:
        pass
    print("waited")

signals.watch()
begin = threading.Event()
thread = threading.Thread(target=wait)
thread.start()
sys.setswitchinterval(1000)  # no other thread has its turn
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
except KeyboardInterrupt:
    begin.set()
ctypes.CDLL(None).sleep(2)
thread.join()
""")
    assert said == "waited\n"
