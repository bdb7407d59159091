"""On the path of a process that is to have another time of day: Python reads this before anything else.

Only `time.time` is shifted; the monotonic clock goes on as it is, as it does when a host's clock is wrong.
"""

import os
import time

_shift = float(os.environ["CHAOS_CLOCK_SHIFT_SEC"])
_true_time = time.time


def _shifted_time() -> float:
    return _true_time() + _shift


time.time = _shifted_time
