"""Power cuts: the system calls of a real run are recorded, and its files rebuilt as a disk would hold them at each cut.

``python -m tests.power_cuts --cuts 20000``. Needs ``strace``.
"""
