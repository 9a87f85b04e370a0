// csrcleaner runs the controller of kube-controller-manager that removes old CertificateSigningRequests on all existing
// objects. In kube-controller-manager itself the first round starts before the cache is filled, so that it finds none, and
// the next round starts an hour later.
package main

import (
	"context"
	"os"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
)

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		panic(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	factory := informers.NewSharedInformerFactory(client, 0)
	requests := factory.Certificates().V1().CertificateSigningRequests()
	requests.Informer()
	ctx := context.Background()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	cleaner.NewCSRCleanerController(client.CertificatesV1().CertificateSigningRequests(), requests).Run(ctx, 1)
}
