"""unit: no database. integration, migration, plan: a real PostgreSQL. acceptance: processes.

tests/README.md describes all folders.
"""
