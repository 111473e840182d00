"""The end of a server that was told to stop.

jupyter_server stops its event loop while requests are in progress. A file that is being saved is then left as it was,
and Python waits for the thread that AnyIO keeps for such a request, which ends only with the request: for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time

from anyio.to_thread import current_default_thread_limiter

REQUEST_SECONDS = 4.0  # `make down` asks again after 5
THREAD_SECONDS = 1.0
LOOK_SECONDS = 0.05
LOOKS = 2  # between two steps of a request no thread works for it


async def finish_requests() -> None:
    """Wait until no thread works for a request, at most REQUEST_SECONDS; on the event loop."""
    end = time.monotonic() + REQUEST_SECONDS
    threads, quiet = current_default_thread_limiter(), 0
    while quiet < LOOKS and time.monotonic() < end:
        quiet = 0 if threads.borrowed_tokens else quiet + 1
        await asyncio.sleep(LOOK_SECONDS)


def leave_threads(log: logging.Logger) -> None:
    """Have this process end THREAD_SECONDS after its main thread, where other threads are left by then."""
    threading.Thread(target=_leave, args=(log,), name="rocmlab end", daemon=True).start()


def _leave(log: logging.Logger) -> None:
    threading.main_thread().join()
    time.sleep(THREAD_SECONDS)  # Python ends meanwhile, and this thread with it, unless others are left
    left = ", ".join(sorted(thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()))
    log.warning("the server ends without waiting for threads, as of a request that was not finished: %s", left)
    try:
        logging.shutdown()
        sys.stdout.flush()
    finally:
        os._exit(0)
