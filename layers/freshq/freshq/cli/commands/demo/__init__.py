"""`freshq demo`: one overload, served newest first and served in order, side by side."""
