"""What is made of a study's attempts: the report, the page of `ponder view`, exports, comparisons,
notebooks.
"""
