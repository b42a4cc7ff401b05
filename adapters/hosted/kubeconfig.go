// Package hosted asks the hosted cluster's API for Services, and nothing else. Its client
// is of package kubeapi, without client-go's TLS and its programs for credentials, since
// sidecars run beside every control plane component.
//
// A Services owns its HTTP client, a watch while Run runs, and what it has
// learnt. Package adapters makes one for each process; package resolve asks it.
package hosted

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"konnectivity/internal/files"
	"konnectivity/internal/kubeapi"
)

// maxFile bounds a kubeconfig and the files it names; real ones have a few
// kilobytes.
const maxFile = 1 << 20

// access is how to reach the API, with everything read and checked.
type access struct {
	kubeapi.Access
	proxy  *url.URL // nil means as the environment says
	secure *tls.Config
	digest [sha256.Size]byte // of all files that went into it

	trip     *http.Transport                   // has the connections; client.connect makes it
	services kubeapi.Objects[*kubeapi.Service] // over trip
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

// load reads a kubeconfig and the files it refers to. Errors contain no
// secrets.
func load(path string) (*access, error) {
	r := &reader{dir: filepath.Dir(path)}
	data, err := r.file(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	var k kubeapi.Kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil { // which may quote a secret
		if _, ok := errors.AsType[base64.CorruptInputError](err); ok {
			return nil, fmt.Errorf("%s: a field that ends in -data is not base64", path)
		}
		return nil, fmt.Errorf("%s is not a kubeconfig", path)
	}
	a, err := r.access(k)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	a.digest = sha256.Sum256(r.sum)
	return a, nil
}

// access reads what the current context says; a file with a single context need not name it.
func (r *reader) access(k kubeapi.Kubeconfig) (*access, error) {
	if k.CurrentContext == "" && len(k.Contexts) == 1 {
		k.CurrentContext = k.Contexts[0].Name
	}
	cluster, user, err := k.Current()
	switch {
	case err != nil:
		return nil, err
	case user.Exec != nil || user.AuthProvider != nil:
		return nil, errors.New("its user needs a credential plugin, which is not run here; use a certificate or a token")
	case user.TokenFile != "": // wins, as in client-go
		user.Token = ""
	}
	server, err := parseURL("server", cluster.Server)
	if err != nil {
		return nil, err
	}
	if user.Username == "" {
		user.Username = server.User.Username()
		user.Password, _ = server.User.Password()
	}
	server.User = nil // errors about requests quote the URL
	cluster.Server = server.String()
	a := new(access)
	if cluster.ProxyURL != "" {
		if a.proxy, err = parseURL("proxy-url", cluster.ProxyURL); err != nil {
			return nil, err
		}
	}
	if a.Access, _, err = cluster.Access(user, r.file); err != nil {
		return nil, err
	}
	if strings.ContainsAny(a.Token, "\r\n\x00") {
		return nil, errors.New("the token contains characters that no token may have")
	}
	a.secure, err = a.TLS()
	return a, err
}

func parseURL(what, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" {
		return nil, fmt.Errorf("%s is not an http or https URL", what) // it may hold a password
	}
	return u, nil
}
