"""The commands of ``redrive`` with their options, by purpose; each calls a function of a module of ``cli``."""
