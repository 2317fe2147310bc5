"""`mqdb worker`: the processes of an application, and the one that watches over them."""
