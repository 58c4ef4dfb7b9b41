"""How it reads: values in, styled text out. Knows no screen."""
