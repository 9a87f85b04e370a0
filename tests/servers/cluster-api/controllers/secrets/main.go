// Reads a cluster's Secrets with Cluster API's own code and says what its controllers would make of them:
//
//	cluster-api-secrets KUBECONFIG NAMESPACE CLUSTER
//
// Prints one line a question, `init`, `join`, `kubeconfig` and `etcd`, each with `ok` or with Cluster API's own error.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/cluster-api/util/secret"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "cluster-api-secrets KUBECONFIG NAMESPACE CLUSTER")
		os.Exit(64)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	must(err)
	scheme := runtime.NewScheme()
	must(corev1.AddToScheme(scheme))
	api, err := client.New(config, client.Options{Scheme: scheme})
	must(err)
	ctx := context.Background()
	cluster := client.ObjectKey{Namespace: os.Args[2], Name: os.Args[3]}

	// What KubeadmControlPlane and the first node's KubeadmConfig do before they make what is missing.
	certificates := secret.NewCertificatesForInitialControlPlane(nil)
	err = certificates.Lookup(ctx, api, cluster)
	for _, purpose := range []secret.Purpose{secret.ClusterCA, secret.EtcdCA, secret.FrontProxyCA} {
		found := certificates.GetByPurpose(purpose)
		if err == nil && found.KeyPair == nil {
			err = fmt.Errorf("%s would be generated", purpose)
		}
		if err == nil {
			_, err = found.Hashes()
		}
	}
	say("init", err)
	fmt.Printf("files %d\n", len(certificates.AsFiles()))

	// What the KubeadmConfig of a worker does.
	workers := secret.NewCertificatesForWorker("")
	err = workers.Lookup(ctx, api, cluster)
	if err == nil {
		err = workers.EnsureAllExist()
	}
	say("join", err)

	// What KubeadmControlPlane and the cluster cache do.
	text, err := kubeconfig.FromSecret(ctx, api, cluster)
	if err == nil {
		_, err = clientcmd.RESTConfigFromKubeConfig(text)
	}
	if err == nil {
		var found *corev1.Secret
		found, err = secret.Get(ctx, api, cluster, secret.Kubeconfig)
		if err == nil {
			var due bool
			due, err = kubeconfig.NeedsClientCertRotation(found, time.Hour)
			if due {
				err = errors.New("the client certificate is due")
			}
		}
	}
	say("kubeconfig", err)

	// What KubeadmControlPlane does when the etcd CA's key is not there.
	pair, err := secret.Get(ctx, api, cluster, secret.APIServerEtcdClient)
	if err == nil {
		_, err = tls.X509KeyPair(pair.Data[secret.TLSCrtDataName], pair.Data[secret.TLSKeyDataName])
	}
	say("etcd", err)
}

func say(what string, err error) {
	if err == nil {
		fmt.Println(what, "ok")
	} else {
		fmt.Println(what, err)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
