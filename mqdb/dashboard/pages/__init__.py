"""The pages, a module for each subject. `PAGES` of a module has their paths below the broker.

overview, topics, messages, groups, dead_letters          for daily use
redrives                                                  the redrive of the page of dead letters
scheduled, crons, transactions, selectors                 waiting messages; filters to try
storage, operations, doctor                               upkeep
"""
