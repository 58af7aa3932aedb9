"""Tables that are long to make, apart from the section that shows them."""
