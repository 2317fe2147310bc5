"""The pages of the dashboard, a module for each subject. `PAGES` has the paths of a module's pages below the broker.

overview, topics, messages, groups, dead_letters          for daily use
redrives                                                  redrives from the page of dead letters
scheduled, crons, transactions, selectors                 waiting messages, and filters to try
storage, operations, doctor                               upkeep
"""
