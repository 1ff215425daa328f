"""`skylark bench compare`: the same cells on our broker and on other people's, side by side."""
