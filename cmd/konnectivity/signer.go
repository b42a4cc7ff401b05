package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"konnectivity/cmd/internal/program"
	"konnectivity/cmd/konnectivity/internal/signer"
	"konnectivity/internal/cli"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/observe"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
)

// signerFlags are the command line of `konnectivity signer`.
type signerFlags struct {
	kubeconfig, name, namespace string
	terms                       signer.Terms
	ca                          tlsreload.Files // Cert and Key of the CA that signs, CA to publish
	health                      cli.Port
	logging                     cli.LogFlags
}

func newSigner() *cobra.Command {
	f := &signerFlags{}
	cmd := &cobra.Command{
		Use:   "signer",
		Short: "Issue the certificates of agents that are pods, as kubelets ask for them",
		Long: "Signer runs beside the control plane of the cluster in which agents are pods, of Kubernetes\n" +
			"1.37 or newer. It answers kubelets' PodCertificateRequests with certificates that bind the\n" +
			"agent's id to its node or pod, and publishes the servers' CA in a ClusterTrustBundle\n" +
			"(docs/enrolment.md). Several may run side by side. It ends with SIGTERM.",
		Example: "  konnectivity signer --kubeconfig=kubeconfig --ca-cert=ca.crt --ca-key=ca.key --publish-ca=ca.crt",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cli.AddFlags(cmd, "Signer flags", func(set *pflag.FlagSet) {
		set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file of the agents' cluster (default: the pod's service account)")
		set.StringVar(&f.name, "signer-name", "konnectivity.internal/agent", "name of this signer, DOMAIN/NAME, as the agents' podCertificate volumes have it")
		set.StringVar(&f.namespace, "agent-namespace", "kube-system", "namespace of agents: pods of others get no answer")
		set.StringVar(&f.terms.ServiceAccount, "agent-service-account", "konnectivity-agent", "service account of agents: pods with another are denied")
		set.StringVar(&f.terms.TrustDomain, "trust-domain", pki.DefaultTrustDomain, "trust domain of the role in their certificates")
		set.DurationVar(&f.terms.Lifetime, "lifetime", 24*time.Hour, "longest life of a certificate, from 1h; a pod may ask for less; kubelet replaces it after half to two thirds of it")
		set.StringVar(&f.ca.Cert, "ca-cert", "", "certificate file of the CA that signs, which servers have as --cluster-ca-cert; followed by those above it if it is not a root")
		set.StringVar(&f.ca.Key, "ca-key", "", "its private key file")
		set.StringVar(&f.ca.CA, "publish-ca", "", "CA file for verifying servers, which is published as a ClusterTrustBundle (default: none is)")
	})
	cli.AddFlags(cmd, "Health and metrics", func(set *pflag.FlagSet) {
		f.health = cli.Port{Flag: "health-port", Least: 1}
		set.IntVar(&f.health.Number, "health-port", 8098, "port for /healthz, /readyz and /metrics")
		set.StringVar(&f.health.Host, "health-bind-address", "", "address for the same (default: all)")
	})
	cli.AddFlags(cmd, "Logging", f.logging.AddTo)
	return cmd
}

func (f *signerFlags) validate(set *pflag.FlagSet) error {
	switch {
	case f.ca.Cert == "" || f.ca.Key == "":
		return cli.Usagef("--ca-cert and --ca-key are required: want the files of the CA that signs")
	case !isSigner(f.name):
		return cli.Usagef("--signer-name=%s: want DOMAIN/NAME, and a domain with a dot", f.name)
	case f.terms.Lifetime < signer.Least:
		return cli.Usagef("--lifetime=%s: want 1h at least, which is the shortest that Kubernetes takes", f.terms.Lifetime)
	case len(validation.IsDNS1123Subdomain(f.terms.ServiceAccount)) > 0:
		return cli.Usagef("--agent-service-account=%s: want the name of a service account", f.terms.ServiceAccount)
	case len(validation.IsDNS1123Label(f.namespace)) > 0:
		return cli.Usagef("--agent-namespace=%s: want the name of a namespace", f.namespace)
	case !pki.ValidTrustDomain(f.terms.TrustDomain):
		return cli.Usagef("--trust-domain=%q: want lower-case letters, digits, '.', '-' and '_'", f.terms.TrustDomain)
	}
	if err := cli.CheckPorts(f.health); err != nil {
		return err
	}
	return cli.CheckFiles(set, "kubeconfig", "ca-cert", "ca-key", "publish-ca")
}

// isSigner reports whether the API takes name for a signer's.
func isSigner(name string) bool {
	domain, rest, _ := strings.Cut(name, "/")
	return strings.Contains(domain, ".") && len(validation.IsDNS1123Subdomain(domain)) == 0 && len(validation.IsDNS1123Subdomain(rest)) == 0
}

func (f *signerFlags) run(cmd *cobra.Command) error {
	if err := f.validate(cmd.Flags()); err != nil {
		return err
	}
	log, err := f.logging.New("konnectivity-signer", os.Stderr)
	if err != nil {
		return err
	}
	defer logging.End(log)
	base := program.New("konnectivity-signer", log)
	ca, err := base.Certificates(f.ca, tlsreload.Options{Name: "ca"})
	if err != nil {
		return err
	}
	if _, err := pki.CAOf(*ca.Certificate()); err != nil {
		return fmt.Errorf("--ca-cert=%s: %w", f.ca.Cert, err)
	}
	opts := signer.Options{Name: f.name, Terms: f.terms, CA: ca.Certificate, Log: log, Registerer: base.Registry}
	if f.ca.CA != "" {
		opts.Trust = f.published
	}
	if err := f.clients(&opts); err != nil {
		return err
	}
	s := signer.New(opts)
	l, err := f.health.Listen()
	if err != nil {
		return err
	}
	health := observe.Health{Metrics: base.Registry, Checks: []observe.Check{{Name: "requests", Do: s.Ready}}}
	log.WithFields(logrus.Fields{"signer": f.name, "namespace": f.namespace}).Info("issuing certificates")
	serve := func(ctx context.Context) error { return observe.Serve(ctx, l, health.Handler(), log) }
	return cli.Around(cmd.Context(), serve, append(base.Background, s.Run))
}

// clients makes the clients of the API.
func (f *signerFlags) clients(opts *signer.Options) error {
	config, err := kubeapi.Load(f.kubeconfig, "signer")
	if err != nil {
		return err
	}
	if opts.Requests, err = kubeapi.NewPodCertificateRequests(config, f.namespace); err == nil {
		opts.Bundles, err = kubeapi.NewClusterTrustBundles(config)
	}
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return nil
}

// published are the CAs of the file as the API wants them: certificates of CAs, each once,
// and nothing else.
func (f *signerFlags) published() (string, error) {
	certs, err := f.ca.TrustedCAs()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	for i, cert := range certs {
		if !cert.IsCA {
			return "", fmt.Errorf("--publish-ca=%s: the certificate of %s is not a CA's", f.ca.CA, pki.Name(cert))
		}
		if !slices.ContainsFunc(certs[:i], cert.Equal) {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
		}
	}
	return out.String(), nil
}
