"""The only room that knows Gymnasium: every flavour of environment becomes canonical rows."""
