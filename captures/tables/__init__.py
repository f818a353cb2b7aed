"""Exchanges as rows: the one definition of all columns, and what fills them.

rows      columns of captures      tabulate  exchanges as rows
"""
