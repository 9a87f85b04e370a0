// cluster-api runs the code of Cluster API's controllers on a cluster's objects:
//
//	cluster-api secrets KUBECONFIG NAMESPACE CLUSTER
//	    reads the cluster's Secrets; prints a line for each use of them, with `ok` or Cluster API's own error
//	cluster-api userdata KUBECONFIG NAMESPACE CLUSTER init|join HOST:PORT
//	    prints the user data of a control-plane node of the KubeadmControlPlane of the same name
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	"sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/cloudinit"
	kubeadmtypes "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types"
	"sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstream"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/cluster-api/util/secret"
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "cluster-api secrets|userdata KUBECONFIG NAMESPACE CLUSTER …")
		os.Exit(64)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[2])
	must(err)
	scheme := runtime.NewScheme()
	must(corev1.AddToScheme(scheme))
	must(controlplanev1.AddToScheme(scheme))
	api, err := client.New(config, client.Options{Scheme: scheme})
	must(err)
	ctx := context.Background()
	cluster := client.ObjectKey{Namespace: os.Args[3], Name: os.Args[4]}
	switch os.Args[1] {
	case "secrets":
		secrets(ctx, api, cluster)
	case "userdata":
		userdata(ctx, api, cluster, os.Args[5], os.Args[6])
	}
}

func secrets(ctx context.Context, api client.Client, cluster client.ObjectKey) {
	// As KubeadmControlPlane, and the KubeadmConfig of the first node.
	certificates := secret.NewCertificatesForInitialControlPlane(nil)
	err := certificates.Lookup(ctx, api, cluster)
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

	// As the KubeadmConfig of a worker, and for the same authority that of a further control-plane node.
	certificates = secret.NewCertificatesForWorker("")
	err = certificates.Lookup(ctx, api, cluster)
	if err == nil {
		err = certificates.EnsureAllExist()
	}
	say("join", err)

	// As KubeadmControlPlane and the cluster cache.
	text, err := kubeconfig.FromSecret(ctx, api, cluster)
	if err == nil {
		_, err = clientcmd.RESTConfigFromKubeConfig(text)
	}
	var found *corev1.Secret
	if err == nil {
		found, err = secret.Get(ctx, api, cluster, secret.Kubeconfig)
	}
	if err == nil {
		var due bool
		due, err = kubeconfig.NeedsClientCertRotation(found, time.Hour)
		if due {
			err = errors.New("the client certificate is due")
		}
	}
	say("kubeconfig", err)

	// As KubeadmControlPlane without the key of the etcd CA.
	etcd, err := secret.Get(ctx, api, cluster, secret.EtcdCA)
	if err == nil && etcd.Data[secret.TLSKeyDataName] != nil {
		err = errors.New("the etcd CA's key would be used")
	}
	if err == nil {
		found, err = secret.Get(ctx, api, cluster, secret.APIServerEtcdClient)
	}
	if err == nil {
		_, err = tls.X509KeyPair(found.Data[secret.TLSCrtDataName], found.Data[secret.TLSKeyDataName])
	}
	say("etcd", err)
}

func userdata(ctx context.Context, api client.Client, cluster client.ObjectKey, role, endpoint string) {
	plane := &controlplanev1.KubeadmControlPlane{}
	must(api.Get(ctx, cluster, plane))
	spec := &plane.Spec.KubeadmConfigSpec
	version, err := semver.ParseTolerant(plane.Spec.Version)
	must(err)
	for at := range spec.Files {
		from := spec.Files[at].ContentFrom.Secret
		if from.Name == "" {
			continue
		}
		found := &corev1.Secret{}
		must(api.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: from.Name}, found))
		content, ok := found.Data[from.Key]
		if !ok {
			must(fmt.Errorf("secret %s has no %s", from.Name, from.Key))
		}
		spec.Files[at].Content = string(content)
		spec.Files[at].ContentFrom = bootstrapv1.FileSource{}
	}
	base := cloudinit.BaseUserData{
		AdditionalFiles:     spec.Files,
		PreKubeadmCommands:  spec.PreKubeadmCommands,
		PostKubeadmCommands: spec.PostKubeadmCommands,
		KubernetesVersion:   version,
	}
	var text []byte
	if role == "init" {
		certificates := secret.NewCertificatesForInitialControlPlane(&spec.ClusterConfiguration)
		must(certificates.Lookup(ctx, api, cluster))
		must(present(certificates))
		spec.ClusterConfiguration.ControlPlaneEndpoint = endpoint
		clusterConfiguration, err := kubeadmtypes.MarshalClusterConfigurationForVersion(&spec.ClusterConfiguration, version,
			&upstream.AdditionalData{ClusterName: ptr.To(cluster.Name), KubernetesVersion: ptr.To(plane.Spec.Version)})
		must(err)
		initConfiguration, err := kubeadmtypes.MarshalInitConfigurationForVersion(&spec.InitConfiguration, version)
		must(err)
		text, err = cloudinit.NewInitControlPlane(&cloudinit.ControlPlaneInput{
			BaseUserData:         base,
			Certificates:         certificates,
			ClusterConfiguration: clusterConfiguration,
			InitConfiguration:    initConfiguration,
		})
		must(err)
	} else {
		certificates := secret.NewControlPlaneJoinCerts(&spec.ClusterConfiguration)
		must(certificates.Lookup(ctx, api, cluster))
		must(present(certificates))
		// As the controller does, with a new token.
		hashes, err := certificates.GetByPurpose(secret.ClusterCA).Hashes()
		must(err)
		join := &spec.JoinConfiguration
		join.ControlPlane = &bootstrapv1.JoinControlPlane{}
		join.Discovery.BootstrapToken = bootstrapv1.BootstrapTokenDiscovery{
			Token: "abcdef.0123456789abcdef", APIServerEndpoint: endpoint, CACertHashes: hashes,
		}
		joinConfiguration, err := kubeadmtypes.MarshalJoinConfigurationForVersion(join, version)
		must(err)
		text, err = cloudinit.NewJoinControlPlane(&cloudinit.ControlPlaneJoinInput{
			BaseUserData:      base,
			Certificates:      certificates,
			JoinConfiguration: joinConfiguration,
		})
		must(err)
	}
	_, err = os.Stdout.Write(text)
	must(err)
}

// present omits the service-account pair, which the controller would have created by now.
func present(certificates secret.Certificates) error {
	for _, found := range certificates {
		if found.KeyPair == nil && found.Purpose != secret.ServiceAccount {
			return fmt.Errorf("there is no %s", found.Purpose)
		}
	}
	return nil
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
