"""The live page: studies, figures, attempts and transcripts of one or several stores.

A request passes `server` (who may ask, and what the browser may do with the answer), then a page of
`app`, whose values `pages` computes. What it shows comes from `studies` (what a store's studies
are, and how far each is), `stores` and `queries` (which attempts), `results.transcript` (one attempt
with its texts) and `estimates` (figures, made in a process of their own). Stores are opened to read
only.
"""
