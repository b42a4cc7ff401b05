package kubeapi_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// programmed is an API over TLS whose client has a program for credentials: a shell script
// in a folder. user has further fields of the program, in JSON.
func programmed(t *testing.T, script, fields string, answer http.HandlerFunc) (leases kubeapi.Objects[*kubeapi.Lease], folder string) {
	t.Helper()
	srv, ca := secureAPI(t, true, &tls.Config{ClientAuth: tls.RequestClientCert}, answer)
	folder = t.TempDir()
	writeFile(t, filepath.Join(folder, "ca.crt"), string(ca))
	writeFile(t, filepath.Join(folder, "script"), "cd "+folder+"\n"+script)
	file := filepath.Join(folder, "kubeconfig")
	writeFile(t, file, `{"clusters": [{"name": "c", "cluster": {"server": "`+srv.URL+`", "certificate-authority": "ca.crt",
		"extensions": [{"name": "other", "extension": 1}, {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]}}],
		"users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["`+folder+`/script"],
			"env": [{"name": "WHO", "value": "agent"}], "interactiveMode": "IfAvailable"`+fields+`}}}],
		"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}`)
	leases = testutil.Must(kubeapi.NewLeases(testutil.Must(kubeapi.Load(file, "--some-flag"))(t), "ns"))(t)
	t.Cleanup(leases.CloseIdle)
	return leases, folder
}

const oneLease = `{"kind":"Lease","metadata":{"name":"a"}}`

// A program's token is used until it expires, or the API refuses it.
func TestProgramForTokens(t *testing.T) {
	var got []string
	leases, folder := programmed(t, `
		echo run >>runs
		echo "$KUBERNETES_EXEC_INFO" >info
		n=$(($(wc -l <runs)))
		[ $n -lt 3 ] || expires=', "expirationTimestamp": "2020-01-01T00:00:00Z"'
		echo '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "'$WHO-$n'"'$expires'}}'
	`, `, "provideClusterInfo": true`, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		if len(got) == 2 || len(got) == 3 {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, oneLease)
	})
	var errs []error
	for range 5 {
		_, err := leases.Get(t.Context(), "a")
		errs = append(errs, err)
	}
	// The third is refused with a new token, and the tokens after it have expired at once.
	testutil.Equal(t, fmt.Sprint(got), "[Bearer agent-1 Bearer agent-1 Bearer agent-2 Bearer agent-3 Bearer agent-4]",
		"asked with %s", got)
	for i, err := range errs {
		refused := i == 1 || i == 2
		testutil.Holds(t, refused == kubeapi.Denied(err) && (refused || err == nil), "call %d: %v", i, err)
	}
	var info struct {
		Kind, APIVersion string
		Spec             struct {
			Interactive bool
			Cluster     struct {
				Server string
				CA     []byte `json:"certificate-authority-data"`
				Config map[string]string
			}
		}
	}
	text := testutil.Must(os.ReadFile(filepath.Join(folder, "info")))(t)
	testutil.NoError(t, json.Unmarshal(text, &info))
	if c := info.Spec.Cluster; info.Kind != "ExecCredential" || !strings.HasPrefix(c.Server, "https://") || len(c.CA) == 0 || c.Config["audience"] != "x" || info.Spec.Interactive {
		t.Errorf("the program is told %s", text)
	}
}

// A certificate belongs to its connection: once the API has refused it, or the program has
// another one, the connection is of no more use.
func TestProgramForCertificates(t *testing.T) {
	ca := testutil.Must(pki.NewCA("ca"))(t)
	issue := func(name string) string {
		pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: name, DNS: []string{"x"}, Client: true}))(t)
		return string(testutil.Must(json.Marshal(map[string]any{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
			"status": map[string]string{"clientCertificateData": string(pair.CertPEM), "clientKeyData": string(pair.KeyPEM)}}))(t))
	}
	var good atomic.Value
	good.Store("first")
	leases, folder := programmed(t, `echo run >>runs; echo "$KUBERNETES_EXEC_INFO" >info; cat out`, "", func(w http.ResponseWriter, r *http.Request) {
		testutil.Equal(t, r.Header.Get("Authorization"), "", "beside a certificate it is asked with")
		if r.TLS.PeerCertificates[0].Subject.CommonName != good.Load() { // as of one that has expired
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, oneLease)
	})
	writeFile(t, filepath.Join(folder, "out"), issue("first"))
	testutil.Must(leases.Get(t.Context(), "a"))(t)
	good.Store("second")
	writeFile(t, filepath.Join(folder, "out"), issue("second"))
	_, err := leases.Get(t.Context(), "a")
	testutil.Holds(t, kubeapi.Denied(err), "an expired certificate: %v", err)
	testutil.Succeeds(t, testutil.Err(leases.Get(t.Context(), "a")), "after the API has refused the first certificate")
	if runs := testutil.Must(os.ReadFile(filepath.Join(folder, "runs")))(t); strings.Count(string(runs), "run") != 2 {
		t.Errorf("the program ran %d times, want 2", strings.Count(string(runs), "run"))
	}
	info := testutil.Must(os.ReadFile(filepath.Join(folder, "info")))(t)
	testutil.Holds(t, !strings.Contains(string(info), "cluster"), "a program that wants to know no cluster is told %s", info)
}

// What a program does wrong is said, but for what it prints, which may be a secret.
func TestProgramsThatFail(t *testing.T) {
	const kind = `echo '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": `
	for name, c := range map[string]struct{ script, fields, want string }{
		"it is not there":  {"", `, "command": "no-such-program", "installHint": "get it from there"`, "get it from there"},
		"beside the file":  {"", `, "command": "./script"`, "permission denied"}, // it may not be run
		"it fails":         {"echo what is wrong >&2; exit 3", "", "exit status 3: what is wrong"},
		"nothing":          {"", "", "printed no ExecCredential"},
		"garbage":          {"echo hunter2", "", "printed no ExecCredential"},
		"another version":  {`echo '{"kind": "ExecCredential", "apiVersion": "v2", "status": {"token": "hunter2"}}'`, "", "printed no ExecCredential of client.authentication.k8s.io/v1"},
		"no credentials":   {kind + `{}}'`, "", "neither a token nor a certificate"},
		"half a pair":      {kind + `{"clientCertificateData": "hunter2"}}'`, "", "a certificate that cannot be used"},
		"it wants a human": {kind + `{"token": "hunter2"}}'`, `, "interactiveMode": "Always"`, "wants a terminal"},
	} {
		t.Run(name, func(t *testing.T) {
			leases, _ := programmed(t, c.script, c.fields, func(http.ResponseWriter, *http.Request) { t.Error("the API was asked") })
			_, err := leases.Get(t.Context(), "a")
			testutil.Holds(t, err != nil && strings.Contains(err.Error(), c.want) &&
				!strings.Contains(err.Error(), "hunter2"), "%v, want %q", err, c.want)
		})
	}
}
