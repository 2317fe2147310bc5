"""`mqdb worker`: the processes of an application, and the process that supervises them.

command, target        begin here; the name of an App
supervisor, process    the two kinds of processes; order: what they tell each other
"""
