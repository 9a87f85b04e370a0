// cert-manager-controllers runs, in one namespace, the controllers of cert-manager that sign with a CA issuer, and the
// one that approves CertificateRequests. cert-manager's own program is in a module that no module proxy has.
package main

import (
	"context"
	"os"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	requests "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	signingrequests "github.com/cert-manager/cert-manager/pkg/controller/certificatesigningrequests/ca"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
)

func main() {
	ctx := context.Background()
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         os.Args[1],
		Namespace:          os.Args[2],
		KubernetesAPIQPS:   50,
		KubernetesAPIBurst: 100,
	})
	check(err)
	shared, err := factory.Build()
	check(err)
	for _, name := range []string{
		signingrequests.CSRControllerName, requests.CRControllerName, approver.ControllerName, issuers.ControllerName,
	} {
		one, err := controller.Known()[name](factory)
		check(err)
		go func() { check(one.Run(2, ctx)) }()
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	select {}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
