"""One module per file format: each gets named arrays from a file; `flat` makes a `Dataset` of them."""
