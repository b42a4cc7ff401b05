// Package hosted asks the hosted cluster's API for Services, and nothing else.
// It has a client of a few kilobytes instead of client-go's megabytes, because
// sidecars run beside every control plane component.
//
// A Services owns its HTTP client, a watch while Run runs, and what it has
// learnt. Package adapters makes one for each process; package resolve asks it.
package hosted

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"konnectivity/internal/files"
)

// maxFile bounds a kubeconfig and the files it names; real ones have a few
// kilobytes.
const maxFile = 1 << 20

// kubeconfig is what we read of the file (client-go, clientcmd/api/v1). A tenant's
// kubeconfig (server/tenant) has another reader on purpose: that one refuses unknown
// fields, proxies and files outside of the tenant's folder, and content wins over
// files. This one reads what the operator wrote, as client-go does.
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	Clusters []struct {
		Name    string
		Cluster cluster
	}
	Users []struct {
		Name string
		User user
	}
}

type cluster struct {
	Server     string
	ServerName string `json:"tls-server-name"`
	Insecure   bool   `json:"insecure-skip-tls-verify"`
	CAFile     string `json:"certificate-authority"`
	CAData     string `json:"certificate-authority-data"`
	ProxyURL   string `json:"proxy-url"`
}

type user struct {
	CertFile  string `json:"client-certificate"`
	CertData  string `json:"client-certificate-data"`
	KeyFile   string `json:"client-key"`
	KeyData   string `json:"client-key-data"`
	Token     string
	TokenFile string
	Username  string
	Password  string
	Exec      any
	Provider  any `json:"auth-provider"`
}

// access is how to reach the API, with everything read and checked.
type access struct {
	server   *url.URL
	proxy    *url.URL // nil means as the environment says
	tls      *tls.Config
	token    string
	username string
	password string
	digest   [sha256.Size]byte // of all files that went into it
	http     *http.Client      // by all of that; set by client
}

// reader reads files and remembers their contents, so that a change of any of
// them is noticed.
type reader struct {
	dir string // what relative paths are relative to
	sum []byte
}

func (r *reader) file(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.dir, path)
	}
	data, err := files.Read(path, maxFile)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	r.sum = append(r.sum, sum[:]...)
	return data, nil
}

// either returns inline, which is base64, else the content of the file at path, else nil.
func (r *reader) either(what, inline, path string) ([]byte, error) {
	switch {
	case inline != "":
		data, err := base64.StdEncoding.DecodeString(inline)
		if err != nil {
			return nil, fmt.Errorf("%s is not base64", what) // the error could quote a key
		}
		return data, nil
	case path != "":
		return r.file(path)
	default:
		return nil, nil
	}
}

// load reads a kubeconfig and the files it refers to. Errors contain no
// secrets.
func load(path string) (*access, error) {
	r := &reader{dir: filepath.Dir(path)}
	data, err := r.file(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, fmt.Errorf("%s is not a kubeconfig", path)
	}
	c, u, err := k.current()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	a, err := r.access(c, u)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	a.digest = sha256.Sum256(r.sum)
	return a, nil
}

// current picks the cluster and user of the current context; a file with a
// single context need not name it.
func (k *kubeconfig) current() (c cluster, u user, err error) {
	name := k.CurrentContext
	if name == "" && len(k.Contexts) == 1 {
		name = k.Contexts[0].Name
	}
	for _, ctx := range k.Contexts {
		if ctx.Name != name {
			continue
		}
		found := false
		for _, entry := range k.Clusters {
			if entry.Name == ctx.Context.Cluster {
				c, found = entry.Cluster, true
			}
		}
		if !found {
			return c, u, fmt.Errorf("cluster %q of context %q is missing", ctx.Context.Cluster, name)
		}
		for _, entry := range k.Users {
			if entry.Name == ctx.Context.User {
				u = entry.User
			}
		}
		return c, u, nil
	}
	return c, u, fmt.Errorf("there is no context %q", name)
}

func (r *reader) access(c cluster, u user) (*access, error) {
	if u.Exec != nil || u.Provider != nil {
		return nil, errors.New("its user needs a credential plugin, which is not run here; use a certificate or a token")
	}
	a := &access{username: u.Username, password: u.Password}
	var err error
	if a.server, err = parseURL("server", c.Server); err != nil {
		return nil, err
	}
	if by := a.server.User; by != nil && a.username == "" {
		a.username = by.Username()
		a.password, _ = by.Password()
	}
	a.server.User = nil // errors about requests quote the URL
	if c.ProxyURL != "" {
		if a.proxy, err = parseURL("proxy-url", c.ProxyURL); err != nil {
			return nil, err
		}
	}
	if a.tls, err = r.tls(c, u); err != nil {
		return nil, err
	}
	a.token = u.Token
	if u.TokenFile != "" { // wins, as in client-go
		token, err := r.file(u.TokenFile)
		if err != nil {
			return nil, err
		}
		a.token = strings.TrimSpace(string(token))
	}
	if strings.ContainsAny(a.token, "\r\n\x00") {
		return nil, errors.New("the token contains characters that no token may have")
	}
	return a, nil
}

func parseURL(what, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" {
		return nil, fmt.Errorf("%s is not an http or https URL", what) // it may hold a password
	}
	return u, nil
}

func (r *reader) tls(c cluster, u user) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.Insecure}
	ca, err := r.either("certificate-authority-data", c.CAData, c.CAFile)
	if err != nil {
		return nil, err
	}
	if ca != nil {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("certificate-authority holds no certificate")
		}
	}
	cert, err := r.either("client-certificate-data", u.CertData, u.CertFile)
	if err != nil {
		return nil, err
	}
	key, err := r.either("client-key-data", u.KeyData, u.KeyFile)
	if err != nil {
		return nil, err
	}
	if cert == nil && key == nil {
		return cfg, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client certificate and key: %w", err)
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, nil
}
