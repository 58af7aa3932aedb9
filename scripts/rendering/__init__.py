"""From values to pictures, markup and pages."""
