"""The columns of all tables (rows), and exchanges as rows of them (tabulate)."""
