"""The objects below /kube: gets, lists and watches, in each form that a client accepts."""
