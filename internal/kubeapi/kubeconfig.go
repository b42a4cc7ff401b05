package kubeapi

import (
	"bytes"
	"fmt"
	"strings"
)

// Kubeconfig has the fields of that format (k8s.io/client-go/tools/clientcmd/api/v1).
type Kubeconfig struct {
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
		Name    string  `json:"name"`
		Cluster Cluster `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string `json:"name"`
		User User   `json:"user"`
	} `json:"users"`
}

// Cluster says where an API server is. What a file has, its content overrules.
type Cluster struct {
	Server     string      `json:"server"`
	ServerName string      `json:"tls-server-name,omitempty"`
	Insecure   bool        `json:"insecure-skip-tls-verify,omitempty"`
	CAFile     string      `json:"certificate-authority,omitempty"`
	CA         []byte      `json:"certificate-authority-data,omitempty"`
	ProxyURL   string      `json:"proxy-url,omitempty"`
	Extensions []extension `json:"extensions,omitempty"`

	DisableCompression bool `json:"disable-compression,omitempty"`
}

type extension struct {
	Name      string `json:"name"`
	Extension any    `json:"extension"`
}

// User has the credentials of a user. What a file has, its content overrules, but not the
// content of TokenFile.
type User struct {
	CertFile     string `json:"client-certificate"`
	Cert         []byte `json:"client-certificate-data"`
	KeyFile      string `json:"client-key"`
	Key          []byte `json:"client-key-data"`
	Token        string `json:"token"`
	TokenFile    string `json:"tokenFile"`
	Username     string `json:"username"`
	Password     string `json:"password"`
	AuthProvider any    `json:"auth-provider"`
	Extensions   any    `json:"extensions"`

	As       string              `json:"as"`
	AsUID    string              `json:"as-uid"`
	AsGroups []string            `json:"as-groups"`
	AsExtra  map[string][]string `json:"as-user-extra"`

	Exec *Program `json:"exec"`
}

// Current is the cluster and the user of the current context.
func (k *Kubeconfig) Current() (cluster Cluster, user User, err error) {
	for _, c := range k.Contexts {
		if c.Name != k.CurrentContext {
			continue
		}
		found := false
		for _, one := range k.Clusters {
			if one.Name == c.Context.Cluster {
				cluster, found = one.Cluster, true
			}
		}
		if !found {
			return cluster, user, fmt.Errorf("there is no cluster %q, which the context %q names", c.Context.Cluster, c.Name)
		}
		for _, u := range k.Users {
			if u.Name == c.Context.User {
				return cluster, u.User, nil
			}
		}
		if c.Context.User == "" {
			return cluster, user, nil
		}
		return cluster, user, fmt.Errorf("there is no user %q, which the context %q names", c.Context.User, c.Name)
	}
	return cluster, user, fmt.Errorf("current-context: there is no context %q", k.CurrentContext)
}

// Access gathers what a cluster and a user say, and has read give the content of the files
// that they name, none of which may be empty. If that fails, it returns the field.
func (c Cluster) Access(u User, read func(name string) ([]byte, error)) (a Access, field string, err error) {
	token := []byte(u.Token)
	a = Access{
		Server: c.Server, ServerName: c.ServerName, Insecure: c.Insecure, CA: c.CA,
		Username: u.Username, Password: u.Password, Cert: u.Cert, Key: u.Key,
	}
	for _, ref := range []struct {
		field, name string
		into        *[]byte
	}{
		{"clusters.cluster.certificate-authority", c.CAFile, &a.CA},
		{"users.user.client-certificate", u.CertFile, &a.Cert},
		{"users.user.client-key", u.KeyFile, &a.Key},
		{"users.user.tokenFile", u.TokenFile, &token},
	} {
		if ref.name == "" || len(*ref.into) > 0 { // as Kubernetes has it, the content wins
			continue
		}
		if *ref.into, err = read(ref.name); err == nil && len(bytes.TrimSpace(*ref.into)) == 0 {
			err = fmt.Errorf("the file %s is empty", ref.name) // one being written: no CA would be any CA of the system
		}
		if err != nil {
			return a, ref.field, err
		}
	}
	a.Token = strings.TrimSpace(string(token))
	return a, "", nil
}
