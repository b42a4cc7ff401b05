package kubeapi

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/time/rate"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/files"
)

const (
	// maxKubeconfig is what a Secret may hold, and far more than a kubeconfig has.
	maxKubeconfig = 1 << 20

	// serviceAccount is where a pod has its credentials.
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// Config is how to reach an API server.
type Config struct {
	URL       string
	Transport transport.Config // has the credentials
	Pace      *rate.Limiter    // of requests; nil: any
}

// Load returns how to reach the Kubernetes API: by a kubeconfig file or, if
// that is "", as the pod's service account. what names the flag or feature that
// needs it, for errors. Load reads files but uses no network.
func Load(kubeconfig, what string) (*Config, error) {
	return LoadFlag("kubeconfig", kubeconfig, what)
}

// LoadFlag is Load for another flag than --kubeconfig.
func LoadFlag(flag, kubeconfig, what string) (*Config, error) {
	if kubeconfig == "" {
		config, err := inCluster()
		if err != nil {
			return nil, fmt.Errorf("%s needs --%s outside of a cluster: %w", what, flag, err)
		}
		return config, nil
	}
	config, err := fromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--%s=%s: %w", flag, kubeconfig, err)
	}
	return config, nil
}

// inCluster is how a pod reaches the API of its cluster.
func inCluster() (*Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, so this is no pod")
	}
	c := &Config{URL: "https://" + net.JoinHostPort(host, port)}
	c.Transport.BearerTokenFile = filepath.Join(serviceAccount, "token")
	c.Transport.TLS.CAFile = filepath.Join(serviceAccount, "ca.crt")
	if _, err := os.Stat(c.Transport.BearerTokenFile); err != nil {
		return nil, err
	}
	return c, nil
}

// fromFile reads a kubeconfig. One that leads nowhere is an error, and not the pod's service
// account: a control plane would take the cluster that hosts it for its own.
func fromFile(path string) (*Config, error) {
	data, err := files.Read(path, maxKubeconfig)
	if err != nil {
		return nil, err
	}
	var k Kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, err
	}
	cluster, user, err := k.Current()
	if err == nil && cluster.Server == "" {
		err = errors.New("its cluster has no server")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: want a cluster, a context that names it, and current-context", err)
	}
	for _, name := range []*string{&cluster.CAFile, &user.CertFile, &user.KeyFile, &user.TokenFile} {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(filepath.Dir(path), *name)
		}
	}
	return configOf(cluster, user, filepath.Dir(path))
}

// configOf is how a user reaches a cluster; programs are relative to a folder.
func configOf(cluster Cluster, user User, folder string) (*Config, error) {
	c := &Config{URL: cluster.Server}
	if !strings.Contains(c.URL, "://") {
		c.URL = "http://" + c.URL // as client-go has it
	}
	t := &c.Transport
	t.DisableCompression = cluster.DisableCompression
	t.TLS = transport.TLSConfig{
		ServerName: cluster.ServerName, Insecure: cluster.Insecure, CAFile: cluster.CAFile, CAData: cluster.CA,
		CertFile: user.CertFile, CertData: user.Cert, KeyFile: user.KeyFile, KeyData: user.Key,
	}
	if cluster.ProxyURL != "" {
		proxy, err := url.Parse(cluster.ProxyURL)
		if err != nil || proxy.Host == "" {
			return nil, errors.New("the cluster's proxy-url is no URL: want SCHEME://HOST:PORT")
		}
		t.Proxy = http.ProxyURL(proxy)
	}
	t.Impersonate = transport.ImpersonationConfig{UserName: user.As, UID: user.AsUID, Groups: user.AsGroups, Extra: user.AsExtra}
	if !strings.HasPrefix(c.URL, "https:") {
		return c, nil // credentials are not sent in the clear
	}
	t.BearerToken, t.BearerTokenFile = user.Token, user.TokenFile
	t.Username, t.Password = user.Username, user.Password
	switch {
	case user.AuthProvider != nil:
		return nil, errors.New("the user's auth-provider is not supported, as in kubectl: use exec")
	case user.Exec == nil:
		return c, nil
	case cluster.CAFile != "" && len(cluster.CA) == 0 && user.Exec.ProvideClusterInfo:
		ca, err := files.Read(cluster.CAFile, maxKubeconfig)
		if err != nil {
			return nil, err
		}
		cluster.CA = ca
	}
	cluster.CAFile = ""
	program := *user.Exec
	if strings.ContainsRune(program.Command, filepath.Separator) && !filepath.IsAbs(program.Command) {
		program.Command = filepath.Join(folder, program.Command)
	}
	(&source{program: program, cluster: cluster}).use(t)
	return c, nil
}
