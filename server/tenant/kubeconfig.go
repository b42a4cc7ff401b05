package tenant

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"konnectivity/internal/kubeapi"
)

// kubeconfig has the accepted fields of that format. Those that run programs or read
// files outside the tenant's folder are refused: a tenant may write the file.
type kubeconfig struct {
	APIVersion     string `json:"apiVersion"`
	Kind           string `json:"kind"`
	CurrentContext string `json:"current-context"`
	Preferences    any    `json:"preferences"`
	Extensions     any    `json:"extensions"`

	Contexts []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster    string `json:"cluster"`
			User       string `json:"user"`
			Namespace  string `json:"namespace"`
			Extensions any    `json:"extensions"`
		} `json:"context"`
	} `json:"contexts"`
	Clusters []struct {
		Name    string         `json:"name"`
		Cluster kubeconfigHost `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string         `json:"name"`
		User kubeconfigUser `json:"user"`
	} `json:"users"`
}

type kubeconfigHost struct {
	Server     string `json:"server"`
	ServerName string `json:"tls-server-name"`
	Insecure   bool   `json:"insecure-skip-tls-verify"`
	CAFile     string `json:"certificate-authority"`
	CA         []byte `json:"certificate-authority-data"`
	ProxyURL   string `json:"proxy-url"`
	Extensions any    `json:"extensions"`

	DisableCompression bool `json:"disable-compression"`
}

type kubeconfigUser struct {
	CertFile     string `json:"client-certificate"`
	Cert         []byte `json:"client-certificate-data"`
	KeyFile      string `json:"client-key"`
	Key          []byte `json:"client-key-data"`
	Token        string `json:"token"`
	TokenFile    string `json:"tokenFile"`
	Username     string `json:"username"`
	Password     string `json:"password"`
	Exec         any    `json:"exec"`
	AuthProvider any    `json:"auth-provider"`
	Extensions   any    `json:"extensions"`
}

// reader reads a file of a tenant's folder.
type reader func(name string) ([]byte, error)

// parseKubeconfig reads what the current context of a kubeconfig says. Files it
// names are read at once, from the tenant's folder alone.
func parseKubeconfig(file string, read reader) (kubeapi.Access, error) {
	text, err := read(file)
	if err != nil {
		return kubeapi.Access{}, err
	}
	var k kubeconfig
	if err := decodeStrict(file, text, &k); err != nil {
		return kubeapi.Access{}, err
	}
	host, user, err := k.current()
	if err != nil {
		return kubeapi.Access{}, &FieldError{File: file, Err: err}
	}
	if field, err := banned(host, user); err != nil {
		return kubeapi.Access{}, &FieldError{File: file, Field: field, Err: err}
	}
	api, field, err := gather(host, user, read)
	if err == nil {
		field, err = checkAccess(api)
	}
	if err != nil {
		return kubeapi.Access{}, &FieldError{File: file, Field: field, Err: err}
	}
	return api, nil
}

// banned returns a field that is not accepted, and why it is not.
func banned(host kubeconfigHost, user kubeconfigUser) (field string, err error) {
	switch {
	case user.Exec != nil:
		return "users.user.exec", errors.New("the server runs no program for a tenant: use a token or a client certificate")
	case user.AuthProvider != nil:
		return "users.user.auth-provider", errors.New("it is not accepted: use a token or a client certificate")
	case host.ProxyURL != "":
		return "clusters.cluster.proxy-url", errors.New("a tenant's API is reached without a proxy")
	}
	return "", nil
}

// gather reads the files that the fields name. If that fails, it returns the field.
func gather(host kubeconfigHost, user kubeconfigUser, read reader) (api kubeapi.Access, field string, err error) {
	token := []byte(user.Token)
	api = kubeapi.Access{
		Server: host.Server, ServerName: host.ServerName, Insecure: host.Insecure, CA: host.CA,
		Username: user.Username, Password: user.Password, Cert: user.Cert, Key: user.Key,
	}
	for _, ref := range []struct {
		field, name string
		into        *[]byte
	}{
		{"clusters.cluster.certificate-authority", host.CAFile, &api.CA},
		{"users.user.client-certificate", user.CertFile, &api.Cert},
		{"users.user.client-key", user.KeyFile, &api.Key},
		{"users.user.tokenFile", user.TokenFile, &token},
	} {
		if err := follow(ref.name, read, ref.into); err != nil {
			return api, ref.field, err
		}
	}
	api.Token = strings.TrimSpace(string(token))
	return api, "", nil
}

// follow reads a file that a kubeconfig names in place of its content.
func follow(name string, read reader, into *[]byte) error {
	if name == "" || len(*into) > 0 { // as Kubernetes has it, the content wins
		return nil
	}
	if err := plainName(name); err != nil {
		return err
	}
	data, err := read(name)
	*into = data
	return err
}

// current is the cluster and the user of the current context.
func (k kubeconfig) current() (host kubeconfigHost, user kubeconfigUser, err error) {
	for _, c := range k.Contexts {
		if c.Name != k.CurrentContext {
			continue
		}
		found := false
		for _, cluster := range k.Clusters {
			if cluster.Name == c.Context.Cluster {
				host, found = cluster.Cluster, true
			}
		}
		if !found {
			return host, user, fmt.Errorf("there is no cluster %q, which the context %q names", c.Context.Cluster, c.Name)
		}
		for _, u := range k.Users {
			if u.Name == c.Context.User {
				return host, u.User, nil
			}
		}
		return host, user, fmt.Errorf("there is no user %q, which the context %q names", c.Context.User, c.Name)
	}
	return host, user, fmt.Errorf("current-context: there is no context %q", k.CurrentContext)
}

// checkAccess returns an error if a cannot be used, and the field that causes it.
func checkAccess(a kubeapi.Access) (field string, err error) {
	u, err := url.Parse(a.Server)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" || u.User != nil:
		return "clusters.cluster.server", errors.New("want https://HOST:PORT, without a user in it")
	case len(a.CA) > 0 && !x509.NewCertPool().AppendCertsFromPEM(a.CA):
		return "clusters.cluster.certificate-authority", errors.New("there is no PEM certificate in it")
	case (len(a.Cert) > 0) != (len(a.Key) > 0):
		return "users.user", errors.New("a client certificate needs its key, and a key its certificate")
	case len(a.Cert) > 0:
		if _, err := tls.X509KeyPair(a.Cert, a.Key); err != nil {
			return "users.user.client-certificate", errors.New(strings.TrimPrefix(err.Error(), "tls: "))
		}
	case a.Token == "" && a.Username == "":
		return "users.user", errors.New("it has neither a token nor a client certificate")
	}
	return "", nil
}
