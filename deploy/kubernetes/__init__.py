"""The manifests, by kustomize; `python -m deploy.kubernetes` writes the one that is made from our own alerts."""
