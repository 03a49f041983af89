# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. All are HoldfastError; two of them end an uncaught process with an exit code that
tells Holdfast whose fault it was (docs/formats/rank.md, "Exit codes")."""
import sys

EXIT_STALE, EXIT_NO_STATE, EXIT_DAMAGED = 70, 72, 76


class HoldfastError(RuntimeError):
    """A call failed; the text names what and, where there is one, the remedy."""


class StateMismatch(HoldfastError):
    """What was saved and what shall be filled are not of the same shape; the text names the path in the state."""


class _Ending(HoldfastError, SystemExit):
    """Ends the process with `code` when nobody catches it."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code
        # An uncaught SystemExit prints nothing.
        print(f"holdfast: {text}", file=sys.stderr, flush=True)


class StaleAttempt(_Ending):
    """A newer attempt of this job has begun: this process has no say any more."""

    def __init__(self, text):
        super().__init__(EXIT_STALE, text)


class StateUnreadable(_Ending):
    """The state to start from is not there or cannot be read."""

    def __init__(self, text):
        super().__init__(EXIT_NO_STATE, text)


class StateDamaged(_Ending):
    """The state to start from was read and does not verify: the next attempt starts from an older point."""

    def __init__(self, text):
        super().__init__(EXIT_DAMAGED, text)
