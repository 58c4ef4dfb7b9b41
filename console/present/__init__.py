"""The texts of the screens: values in, styled text out. Knows no screen."""
