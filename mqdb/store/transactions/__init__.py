"""Half messages, and the checks of those that have not ended.

half_messages  their states, and the copies made by commits
open_halves    half messages that have not ended
half_checks    the checks, and the producers that are asked
own_halves     for roles that do not own the broker
"""
