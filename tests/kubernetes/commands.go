//go:build never

// Package commands names the commands that tests build, so that `go mod tidy` keeps their
// dependencies in go.mod and go.sum. It is never compiled.
package commands

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubeadm"
)
