package tenant

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// inMemory is a folder.
type inMemory map[string]string

func (f inMemory) read(name string) ([]byte, error) {
	text, ok := f[name]
	if !ok {
		return nil, &FieldError{File: name, Err: fs.ErrNotExist}
	}
	return []byte(text), nil
}

// kubeconfigOf is one with those lines for cluster and user.
func kubeconfigOf(cluster, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {%s}}]
users: [{name: u, user: {%s}}]
`, cluster, user)
}

func TestKubeconfigReachesNothingBeyondTheFolder(t *testing.T) {
	ca := testutil.Must(pki.NewCA("api"))(t)
	pem := string(ca.CertPEM)
	const server, token = "server: 'https://api:6443'", "token: secret"
	for _, test := range []struct{ name, cluster, user, want string }{
		{"exec", server, "exec: {command: /bin/true}", "kubeconfig: users.user.exec: the server runs no program"},
		{"empty exec", server, token + ", exec: {}", "users.user.exec"},
		{"auth provider", server, "auth-provider: {name: gcp}", "kubeconfig: users.user.auth-provider: "},
		{"proxy", server + ", proxy-url: 'http://10.0.0.1'", token, "kubeconfig: clusters.cluster.proxy-url: "},
		{"token file elsewhere", server, "tokenFile: /var/run/secrets/token", "kubeconfig: users.user.tokenFile: "},
		{"token file above", server, "tokenFile: ../other/token", "users.user.tokenFile: "},
		{"certificate elsewhere", server, "client-certificate: /etc/a, client-key: /etc/b", "users.user.client-certificate: "},
		{"CA elsewhere", server + ", certificate-authority: /etc/ca", token, "clusters.cluster.certificate-authority: "},
		{"hidden file", server, "tokenFile: ..data", "users.user.tokenFile: "},
		{"missing file", server, "tokenFile: absent", "users.user.tokenFile: absent: "},
		{"empty CA", server + ", certificate-authority: blank", token, "clusters.cluster.certificate-authority: the file blank is empty"},
		{"impersonation", server, token + ", as: admin", "users.user.as: "},
		{"no TLS", "server: 'http://api:6443'", token, "kubeconfig: clusters.cluster.server: want https://"},
		{"user in the URL", "server: 'https://u:hidden@api'", token, "kubeconfig: clusters.cluster.server: want https://"},
		{"no credentials", server, "", "kubeconfig: users.user: it has neither"},
		{"certificate without key", server, "client-certificate-data: " + base64.StdEncoding.EncodeToString([]byte(pem)), "kubeconfig: users.user: "},
		{"good", server, token, ""},
		{"good with files", server + ", certificate-authority: ca.crt", "tokenFile: token", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := inMemory{"kubeconfig": kubeconfigOf(test.cluster, test.user), "ca.crt": pem, "token": "secret\n", "blank": ""}
			api, err := parseKubeconfig("kubeconfig", folder.read)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want == "" && api.Token != "secret":
				t.Errorf("the token is %q", api.Token)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			case err != nil && (strings.Contains(err.Error(), "hidden") && test.name == "user in the URL" || strings.Contains(err.Error(), "secret\n")):
				t.Errorf("a secret is told: %v", err)
			}
		})
	}
}

func TestWhoeverWasAdmittedUnderOtherTokensIsNotTheSame(t *testing.T) {
	base := Tokens{Namespace: "n", ServiceAccount: "s", Audience: "a", API: kubeapi.Access{Server: "https://a", Token: "1"}}
	renewed := base
	renewed.API.Token = "2"
	testutil.Holds(t, base.Same(&renewed), "the server's own credentials count")
	for _, change := range []func(*Tokens){
		func(t *Tokens) { t.Namespace = "m" }, func(t *Tokens) { t.ServiceAccount = "m" }, func(t *Tokens) { t.Audience = "m" },
		func(t *Tokens) { t.API.Server = "https://b" }, func(t *Tokens) { t.API.CA = []byte("x") }, func(t *Tokens) { t.API.Insecure = true },
	} {
		other := base
		change(&other)
		testutil.Holds(t, !base.Same(&other), "%+v is the same", other)
	}
	var none *Tokens
	testutil.Holds(t, !none.Same(&base) && !base.Same(none) && none.Same(nil), "no tokens are the same as some")
}
