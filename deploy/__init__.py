"""Composing, launching and watching. The only package that may import all the others."""
