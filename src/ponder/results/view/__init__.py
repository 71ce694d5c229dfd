"""The live page: studies, figures, attempts and transcripts of one or several stores, served on
this machine.

A request passes `security` (who may ask, and what the browser may do with the answer), then a page
of `app`. What it shows comes from `studies` (what a store's studies are, and how far each is),
`index` and `queries` (which attempts), `transcript` (one attempt with its texts) and `estimates`
(figures, made in a process of their own). Stores are opened to read only.
"""
