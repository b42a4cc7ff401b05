package tenant

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"

	"konnectivity/internal/kubeapi"
)

// reader reads a file of a tenant's folder.
type reader func(name string) ([]byte, error)

// parseKubeconfig reads what the current context of a kubeconfig says. Files it
// names are read at once, from the tenant's folder alone. Fields that run programs or read
// other files are refused: a tenant may write the file.
func parseKubeconfig(file string, read reader) (kubeapi.Access, error) {
	text, err := read(file)
	if err != nil {
		return kubeapi.Access{}, err
	}
	var k kubeapi.Kubeconfig
	if err := decodeStrict(file, text, &k); err != nil {
		return kubeapi.Access{}, err
	}
	host, user, err := k.Current()
	if err != nil {
		return kubeapi.Access{}, &FieldError{File: file, Err: err}
	}
	if field, err := banned(host, user); err != nil {
		return kubeapi.Access{}, &FieldError{File: file, Field: field, Err: err}
	}
	api, field, err := host.Access(user, read.beside)
	if err == nil {
		field, err = checkAccess(api)
	}
	if err != nil {
		return kubeapi.Access{}, &FieldError{File: file, Field: field, Err: err}
	}
	return api, nil
}

// banned returns a field that is not accepted, and why it is not.
func banned(host kubeapi.Cluster, user kubeapi.User) (field string, err error) {
	switch {
	case user.Exec != nil:
		return "users.user.exec", errors.New("the server runs no program for a tenant: use a token or a client certificate")
	case user.AuthProvider != nil:
		return "users.user.auth-provider", errors.New("it is not accepted: use a token or a client certificate")
	case user.As != "" || user.AsUID != "" || user.AsGroups != nil || user.AsExtra != nil:
		return "users.user.as", errors.New("the server acts as no other user: use a token or a client certificate")
	case host.ProxyURL != "":
		return "clusters.cluster.proxy-url", errors.New("a tenant's API is reached without a proxy")
	}
	return "", nil
}

// beside reads a file that a kubeconfig names, which is in the same folder.
func (read reader) beside(name string) ([]byte, error) {
	if err := plainName(name); err != nil {
		return nil, err
	}
	return read(name)
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
