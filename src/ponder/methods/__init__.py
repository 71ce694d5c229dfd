"""Methods: functions from a model to another one, cheaper, shorter or more accurate.

One plugin per file.
"""
