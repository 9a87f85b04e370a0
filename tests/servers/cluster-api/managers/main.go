// cluster-api-managers KUBECONFIG PORT runs Cluster API's controllers for Clusters, Machines, KubeadmConfigs and
// KubeadmControlPlanes in one process, without webhooks.
//
// It also serves port forwarding in place of the kubelets of all machines, on 127.0.0.1:PORT: the controllers reach etcd
// and kube-apiserver of a machine through the API server's port forwarding. The annotation `test/forward-PORT` of a pod is
// the address to which a connection to this port of the pod is forwarded.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/bootstrap/kubeadm/reconcilers/kubeadmconfig"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/controlplane/kubeadm/reconcilers/kubeadmcontrolplane"
	"sigs.k8s.io/cluster-api/controlplane/kubeadm/setup"
	"sigs.k8s.io/cluster-api/core/reconcilers/cluster"
	"sigs.k8s.io/cluster-api/core/reconcilers/machine"
	coresetup "sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/cluster-api/util/index"
)

// Values of the flags of Cluster API's managers.
const (
	remoteConnectionGracePeriod = 50 * time.Second
	remoteConditionsGracePeriod = 5 * time.Minute
	etcdDialTimeout             = 10 * time.Second
	etcdCallTimeout             = 15 * time.Second
	tokenTTL                    = 15 * time.Minute
	// Much shorter than the default of ten minutes, since the tests wait for a reconciliation.
	syncPeriod = 10 * time.Second
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "cluster-api-managers KUBECONFIG PORT")
		os.Exit(64)
	}
	ctrl.SetLogger(klog.Background())
	ctx := ctrl.SetupSignalHandler()
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	must(err)
	go func() { must(serveKubelet(kubernetes.NewForConfigOrDie(config), os.Args[2])) }()

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme,
		controlplanev1.AddToScheme,
	} {
		must(add(scheme))
	}
	// The options of KubeadmControlPlane's manager, by which Secrets are cached.
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Cache:   setup.ManagerCacheOptions(scheme, "test", "", syncPeriod),
		Client:  setup.ManagerClientOptions(),
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	must(err)
	must(index.AddDefaultIndexes(ctx, manager))
	secrets, err := setup.CreateSecretCachingClient(manager)
	must(err)
	cacheOptions := setup.ClusterCacheCacheOptions()
	// For the controller of Machines, as in its own manager.
	cacheOptions.Indexes = []clustercache.CacheOptionsIndex{clustercache.NodeProviderIDIndex}
	clusters, err := clustercache.SetupWithManager(ctx, manager, clustercache.Options{
		SecretClient: secrets,
		Cache:        cacheOptions,
		// As the controller of Machines, which lists pods by fields that a cache does not index.
		Client: coresetup.ClusterCacheClientOptions("test", 20, 30),
	}, controller.Options{})
	must(err)
	client, reader := manager.GetClient(), manager.GetAPIReader()
	must((&cluster.Reconciler{
		Client: client, APIReader: reader, ClusterCache: clusters,
		RemoteConnectionGracePeriod: remoteConnectionGracePeriod,
	}).SetupWithManager(ctx, manager, controller.Options{}))
	must((&machine.Reconciler{
		Client: client, APIReader: reader, ClusterCache: clusters,
		RemoteConditionsGracePeriod: remoteConditionsGracePeriod,
	}).SetupWithManager(ctx, manager, controller.Options{}))
	must((&kubeadmconfig.Reconciler{
		Client: client, APIReader: reader, SecretCachingClient: secrets, ClusterCache: clusters, TokenTTL: tokenTTL,
	}).SetupWithManager(ctx, manager, controller.Options{}))
	must((&kubeadmcontrolplane.Reconciler{
		Client: client, APIReader: reader, SecretCachingClient: secrets, ClusterCache: clusters,
		EtcdDialTimeout: etcdDialTimeout, EtcdCallTimeout: etcdCallTimeout, EtcdLogger: zap.NewNop(),
		RemoteConditionsGracePeriod: remoteConditionsGracePeriod,
	}).SetupWithManager(ctx, manager, controller.Options{}))
	must(manager.Start(ctx))
}

// serveKubelet serves /portForward/NAMESPACE/POD with a self-signed certificate, which the API server accepts if it is
// started without a CA for kubelets.
func serveKubelet(api *kubernetes.Clientset, port string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return err
	}
	server := http.Server{
		Addr:      net.JoinHostPort("127.0.0.1", port),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}},
		Handler: http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
			path := strings.Split(strings.TrimPrefix(request.URL.Path, "/portForward/"), "/")
			if len(path) != 2 {
				http.NotFound(writer, request)
				return
			}
			options, err := portforward.NewV4Options(request)
			if err != nil {
				http.Error(writer, err.Error(), http.StatusBadRequest)
				return
			}
			portforward.ServePortForward(writer, request, forwarder{api, path[0]}, path[1], "", options,
				time.Hour, time.Minute, portforward.SupportedProtocols)
		}),
		// The upgrade to SPDY needs HTTP/1.1.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	return server.ListenAndServeTLS("", "")
}

type forwarder struct {
	api       *kubernetes.Clientset
	namespace string
}

func (f forwarder) PortForward(ctx context.Context, name, _ string, port int32, stream io.ReadWriteCloser) error {
	defer func() { _ = stream.Close() }()
	pod, err := f.api.CoreV1().Pods(f.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	address, err := forwarded(pod, port)
	if err != nil {
		return err
	}
	target, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	go func() {
		_, _ = io.Copy(target, stream)
		_ = target.Close()
	}()
	_, err = io.Copy(stream, target)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func forwarded(pod *corev1.Pod, port int32) (string, error) {
	address, ok := pod.Annotations[fmt.Sprintf("test/forward-%d", port)]
	if !ok {
		return "", fmt.Errorf("pod %s has no port %d", pod.Name, port)
	}
	return address, nil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
