package kubeapi_test

import (
	"encoding/base64"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// kubeconfig writes one of a cluster and a user, in JSON, beside the files that they name.
func kubeconfig(t *testing.T, cluster, user string) (file string) {
	folder := t.TempDir()
	ca := testutil.Must(pki.NewCA("ca"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "x", DNS: []string{"x"}, Client: true}))(t)
	for name, text := range map[string][]byte{"ca.crt": ca.CertPEM, "tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "token": []byte("abc")} {
		writeFile(t, filepath.Join(folder, name), string(text))
	}
	content := strings.NewReplacer("$CA", base64.StdEncoding.EncodeToString(ca.CertPEM),
		"$CERT", base64.StdEncoding.EncodeToString(pair.CertPEM), "$KEY", base64.StdEncoding.EncodeToString(pair.KeyPEM))
	file = filepath.Join(folder, "kubeconfig")
	writeFile(t, file, content.Replace(`{"clusters": [{"name": "a", "cluster": {"server": "https://a"}}, {"name": "c", "cluster": {`+cluster+`}}],
		"users": [{"name": "t", "user": {"token": "t"}}, {"name": "u", "user": {`+user+`}}],
		"contexts": [{"name": "a", "context": {"cluster": "a", "user": "t"}}, {"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}`))
	return file
}

// A kubeconfig means what client-go takes it for.
func TestKubeconfigsMeanWhatTheyMeanToClientGo(t *testing.T) {
	const server = `"server": "https://api.example:6443"`
	for name, c := range map[string]struct{ cluster, user string }{
		"a token":             {server, `"token": "t"`},
		"a file with a token": {server, `"tokenFile": "token"`},
		"a token and a file":  {server, `"token": "t", "tokenFile": "token"`},
		"a password":          {server, `"username": "u", "password": "p"`},
		"nobody":              {server, ``},
		"files":               {server + `, "certificate-authority": "ca.crt"`, `"client-certificate": "tls.crt", "client-key": "tls.key"`},
		"content":             {server + `, "certificate-authority-data": "$CA"`, `"client-certificate-data": "$CERT", "client-key-data": "$KEY"`},
		"another name":        {server + `, "tls-server-name": "other", "disable-compression": true`, `"token": "t"`},
		"no CA":               {server + `, "insecure-skip-tls-verify": true`, `"token": "t"`},
		"impersonation":       {server, `"token": "t", "as": "other", "as-uid": "7", "as-groups": ["g"], "as-user-extra": {"k": ["v"]}`},
		"in the clear":        {`"server": "http://api.example"`, `"token": "t"`},
		"without a scheme":    {`"server": "api.example:8080"`, `"token": "t"`},
		"a path":              {`"server": "https://rancher.example/k8s/clusters/c-1"`, `"token": "t"`},
		"a proxy":             {server + `, "proxy-url": "http://proxy.example:3128"`, `"token": "t"`},
	} {
		t.Run(name, func(t *testing.T) {
			file := kubeconfig(t, c.cluster, c.user)
			theirs := testutil.Must(clientcmd.BuildConfigFromFlags("", file))(t)
			want := testutil.Must(theirs.TransportConfig())(t)
			ours := testutil.Must(kubeapi.Load(file, "--some-flag"))(t)
			got := ours.Transport
			if url := ours.URL; strings.TrimSuffix(url, "/") != theirs.Host && !strings.HasSuffix(url, "://"+theirs.Host) {
				t.Errorf("at %s, want %s", url, theirs.Host)
			}
			if (got.Proxy == nil) != (want.Proxy == nil) {
				t.Errorf("a proxy: %v, want %v", got.Proxy != nil, want.Proxy != nil)
			} else if got.Proxy != nil {
				proxy, err := got.Proxy(&http.Request{})
				testutil.Holds(t, err == nil && proxy.String() == "http://proxy.example:3128",
					"the proxy %v, %v", proxy, err)
			}
			testutil.Holds(t, !strings.HasPrefix(ours.URL, "http:") || !got.HasTokenAuth(), "a token is sent in the clear")
			if want.BearerTokenFile != "" && got.BearerToken == "" {
				want.BearerToken = ""
			}
			want.UserAgent, want.Proxy, got.Proxy, want.DialHolder, want.WrapTransport = "", nil, nil, nil, nil
			want.TLS.ReloadCAFiles, got.TLS.ReloadCAFiles = false, false
			testutil.Holds(t, reflect.DeepEqual(*want, got), "got %+v, want %+v", got, *want)
		})
	}
}

func TestKubeconfigsThatCannotBeUsed(t *testing.T) {
	const server = `"server": "https://api.example:6443"`
	for name, c := range map[string]struct{ cluster, user, want string }{
		"no server":     {``, `"token": "t"`, "no server"},
		"a wrong proxy": {server + `, "proxy-url": "proxy"`, `"token": "t"`, "proxy-url"},
		"a provider":    {server, `"auth-provider": {"name": "oidc"}`, "auth-provider"},
		"a missing CA":  {server + `, "certificate-authority": "absent"`, `"exec": {"command": "x", "provideClusterInfo": true}`, "absent"},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.ErrorSays(t, testutil.Err(kubeapi.Load(kubeconfig(t, c.cluster, c.user), "--some-flag")), c.want, "it is loaded")
		})
	}
}
