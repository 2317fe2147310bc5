"""The pages, a module for each subject. Its `PAGES` say where they are, below the broker.

overview, topics, messages, groups, dead_letters          what one looks at each day
scheduled, crons, transactions, selectors                 what waits; filters to try
storage, operations, doctor                               upkeep
"""
