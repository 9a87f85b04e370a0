// cluster-api-ignition runs the code of Cluster API's KubeadmConfig controller for machines that start with Ignition:
//
//	cluster-api-ignition KUBECONFIG NAMESPACE CLUSTER init|join HOST:PORT
//	    prints the Ignition config of a control-plane node of the KubeadmControlPlane of the same name
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	"sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/cloudinit"
	"sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/ignition"
	kubeadmtypes "sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types"
	"sigs.k8s.io/cluster-api/bootstrap/kubeadm/pkg/types/upstream"
	"sigs.k8s.io/cluster-api/util/secret"
)

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "cluster-api-ignition KUBECONFIG NAMESPACE CLUSTER init|join HOST:PORT")
		os.Exit(64)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	must(err)
	scheme := runtime.NewScheme()
	must(corev1.AddToScheme(scheme))
	must(controlplanev1.AddToScheme(scheme))
	api, err := client.New(config, client.Options{Scheme: scheme})
	must(err)
	cluster := client.ObjectKey{Namespace: os.Args[2], Name: os.Args[3]}
	text, err := generate(context.Background(), api, cluster, os.Args[4] == "init", os.Args[5])
	must(err)
	_, err = os.Stdout.Write(text)
	must(err)
}

func generate(ctx context.Context, api client.Client, cluster client.ObjectKey, init bool, endpoint string) ([]byte, error) {
	plane := &controlplanev1.KubeadmControlPlane{}
	if err := api.Get(ctx, cluster, plane); err != nil {
		return nil, err
	}
	spec := &plane.Spec.KubeadmConfigSpec
	if spec.Format != bootstrapv1.Ignition {
		return nil, fmt.Errorf("the format is %q", spec.Format)
	}
	version, err := semver.ParseTolerant(plane.Spec.Version)
	if err != nil {
		return nil, err
	}
	if err := resolve(ctx, api, cluster.Namespace, spec.Files); err != nil {
		return nil, err
	}
	base := cloudinit.BaseUserData{
		AdditionalFiles:     spec.Files,
		PreKubeadmCommands:  spec.PreKubeadmCommands,
		PostKubeadmCommands: spec.PostKubeadmCommands,
		KubernetesVersion:   version,
	}
	certificates := secret.NewControlPlaneJoinCerts(&spec.ClusterConfiguration)
	if init {
		certificates = secret.NewCertificatesForInitialControlPlane(&spec.ClusterConfiguration)
	}
	if err := certificates.Lookup(ctx, api, cluster); err != nil {
		return nil, err
	}
	for _, found := range certificates {
		// The controller would have created the service-account pair by now.
		if found.KeyPair == nil && found.Purpose != secret.ServiceAccount {
			return nil, fmt.Errorf("there is no %s", found.Purpose)
		}
	}
	var text []byte
	var warnings string
	if init {
		text, warnings, err = first(spec, base, certificates, version, cluster.Name, plane.Spec.Version, endpoint)
	} else {
		text, warnings, err = joining(spec, base, certificates, version, endpoint)
	}
	if err == nil && warnings != "" {
		err = errors.New(warnings)
	}
	return text, err
}

// resolve replaces each reference to a Secret by its content.
func resolve(ctx context.Context, api client.Client, namespace string, files []bootstrapv1.File) error {
	for at := range files {
		from := files[at].ContentFrom.Secret
		if from.Name == "" {
			continue
		}
		found := &corev1.Secret{}
		if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: from.Name}, found); err != nil {
			return err
		}
		content, ok := found.Data[from.Key]
		if !ok {
			return fmt.Errorf("secret %s has no %s", from.Name, from.Key)
		}
		files[at].Content = string(content)
		files[at].ContentFrom = bootstrapv1.FileSource{}
	}
	return nil
}

func first(spec *bootstrapv1.KubeadmConfigSpec, base cloudinit.BaseUserData, certificates secret.Certificates,
	version semver.Version, name, release, endpoint string) ([]byte, string, error) {
	spec.ClusterConfiguration.ControlPlaneEndpoint = endpoint
	cluster, err := kubeadmtypes.MarshalClusterConfigurationForVersion(&spec.ClusterConfiguration, version,
		&upstream.AdditionalData{ClusterName: ptr.To(name), KubernetesVersion: ptr.To(release)})
	if err != nil {
		return nil, "", err
	}
	init, err := kubeadmtypes.MarshalInitConfigurationForVersion(&spec.InitConfiguration, version)
	if err != nil {
		return nil, "", err
	}
	return ignition.NewInitControlPlane(&ignition.ControlPlaneInput{
		ControlPlaneInput: &cloudinit.ControlPlaneInput{
			BaseUserData:         base,
			Certificates:         certificates,
			ClusterConfiguration: cluster,
			InitConfiguration:    init,
		},
		Ignition: &spec.Ignition,
	})
}

func joining(spec *bootstrapv1.KubeadmConfigSpec, base cloudinit.BaseUserData, certificates secret.Certificates,
	version semver.Version, endpoint string) ([]byte, string, error) {
	// As the controller does, with a new token.
	hashes, err := certificates.GetByPurpose(secret.ClusterCA).Hashes()
	if err != nil {
		return nil, "", err
	}
	join := &spec.JoinConfiguration
	join.ControlPlane = &bootstrapv1.JoinControlPlane{}
	join.Discovery.BootstrapToken = bootstrapv1.BootstrapTokenDiscovery{
		Token: "abcdef.0123456789abcdef", APIServerEndpoint: endpoint, CACertHashes: hashes,
	}
	configuration, err := kubeadmtypes.MarshalJoinConfigurationForVersion(join, version)
	if err != nil {
		return nil, "", err
	}
	return ignition.NewJoinControlPlane(&ignition.ControlPlaneJoinInput{
		ControlPlaneJoinInput: &cloudinit.ControlPlaneJoinInput{
			BaseUserData:      base,
			Certificates:      certificates,
			JoinConfiguration: configuration,
		},
		Ignition: &spec.Ignition,
	})
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
