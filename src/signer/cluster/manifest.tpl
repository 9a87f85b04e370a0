# For @SERVER@: as an administrator there, `kubectl apply -f -`.
# The node authenticates with a bootstrap token of the group @GROUP@:
#   kubeadm token create --usages authentication --groups @GROUP@
# Put another subject into the bindings for a ServiceAccount, a user or a group of client certificates.
# @HINT@
