"""Tables that take much code, apart from the section that shows them."""
