"""The live page: studies, figures, attempts and transcripts of one or several stores, served on this machine.

A request passes `security` (who may ask, and what the browser may do with the answer), then a page of `app`. What it
shows comes from `studies` (what a store's studies are), `index` and `queries` (which attempts), `transcript` (one
attempt with its texts), `estimates` (figures, made in a process of their own) and `live` (changes while a run goes on).
Stores are opened to read only.
"""
