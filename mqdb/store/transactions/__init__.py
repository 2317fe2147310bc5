"""Half messages, and the checks of those without an end.

half_messages  the state of each, and the copy that a commit makes
open_halves    those without an end
half_checks    who is asked about them
own_halves     for roles that do not own the broker
"""
