"""Methods: functions from a model to a cheaper model. One plugin per file."""
