package tenant

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

func TestSpecNamesFileAndField(t *testing.T) {
	absolute := filepath.Join(t.TempDir(), "a")
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "tenant.yaml: serverNames: a tenant needs a name"},
		{"no YAML", "a: [", "tenant.yaml: "},
		{"unknown field", "serverNames: [a.example]\nbound: {}", `tenant.yaml: unknown field "bound"`},
		{"field given twice", "serverNames: [a.example]\nserverNames: [b.example]", `tenant.yaml: line 2: key "serverNames" already set`},
		{"long", "serverNames: [a.example]" + strings.Repeat(" ", maxYAML), "tenant.yaml: it has 262168 bytes: want 262144 at most"},
		{"second document", "---\n# one\nserverNames: [a.example]\n---\npolicy: {deny: ['10.0.0.0/8']}", "tenant.yaml: it has several YAML documents"},
		{"second document behind its mark", "serverNames: [a.example]\n--- {policy: {deny: ['10.0.0.0/8']}}", "tenant.yaml: it has several YAML documents"},
		{"second document behind the end", "serverNames: [a.example]\n...\npolicy: {deny: ['10.0.0.0/8']}", "tenant.yaml: it has several YAML documents"},
		{"marks of one document", "%YAML 1.1\n---\n# one\nserverNames: [a.example, ---.example]\n---\n# the end", "tenant.yaml: serverNames[1]: \"---.example\" is no DNS name"},
		{"wrong kind", "serverNames: a.example", "tenant.yaml: serverNames: want a list, not a string"},
		{"fields given often", strings.Repeat("a: b\n", 5000), `tenant.yaml: line 2: key "a" already set in map; line 3: key`},
		{"long rule", "serverNames: [a.example]\npolicy: {deny: ['" + strings.Repeat("*é", 5000) + "']}", "tenant.yaml: policy.deny: "},
		{"wrong kind below", "serverNames: [a.example]\nbounds: {connections: many}", "tenant.yaml: bounds.connections: want a whole number, not a string"},
		{"API servers of both kinds", "serverNames: [a.example]\napiServers: [agent, 'a:1']", "tenant.yaml: apiServers: agent,a:1: either addresses or agent, not both"},
		{"no names", "serverNames: []", "tenant.yaml: serverNames: a tenant needs a name"},
		{"wildcard", "serverNames: ['*.example']", "tenant.yaml: serverNames[0]: \"*.example\": wildcards are not accepted"},
		{"address", "serverNames: [a.example, 10.0.0.1]", "tenant.yaml: serverNames[1]: \"10.0.0.1\" is an address"},
		{"no name", "serverNames: ['a b']", "tenant.yaml: serverNames[0]: \"a b\" is no DNS name"},
		{"strategy", "serverNames: [a.example]\nstrategies: [best]", `tenant.yaml: strategies: unknown proxy strategy "best"`},
		{"ids", "serverNames: [a.example]\nagentIDs: own", `tenant.yaml: agentIDs: "own": want any or certificate`},
		{"identifiers", "serverNames: [a.example]\nagentIdentifiers: all", `tenant.yaml: agentIdentifiers: "all": want any or certificate`},
		{"two mistakes", "serverNames: [a.example]\nagentIDs: own\nagentIdentifiers: all", "tenant.yaml: agentIDs: "},
		{"allow", "serverNames: [a.example]\npolicy: {allow: ['10.0.0.0/99']}", "tenant.yaml: policy.allow: "},
		{"deny", "serverNames: [a.example]\npolicy: {deny: ['10.0.0.0/99']}", "tenant.yaml: policy.deny: "},
		{"half of tokens", "serverNames: [a.example]\ntokens: {kubeconfig: k, namespace: ns, serviceAccount: sa}", "tenant.yaml: tokens.audience: it is missing"},
		{"kubeconfig elsewhere", "serverNames: [a.example]\ntokens: {kubeconfig: ../k, namespace: ns, serviceAccount: sa, audience: a}", "tenant.yaml: tokens.kubeconfig: \"../k\": want the plain name of a file"},
		{"much memory", "serverNames: [a.example]\nbounds: {memoryMiB: 9000000000000}", "tenant.yaml: bounds.memoryMiB: 9000000000000: want 1048576 at most"},
		{"much bandwidth", "serverNames: [a.example]\nbounds: {mbitPerSecond: 9000000000000}", "tenant.yaml: bounds.mbitPerSecond: 9000000000000: want 1000000 at most"},
		{"part of a megabit", "serverNames: [a.example]\nbounds: {mbitPerSecond: 0.5}", "tenant.yaml: bounds.mbitPerSecond: want a whole number"},
		{"port", "serverNames: [a.example]\nlisten: {agentPort: 70000}", "tenant.yaml: listen.agentPort: 70000: want a port from 1 to 65535"},
		{"one port for both", "serverNames: [a.example]\nlisten: {agentPort: 9091, clientPort: 9091}", "tenant.yaml: listen.clientPort: 9091 is agentPort, too"},
		{"part of a path", "serverNames: [a.example]\nlisten: {clientSocket: a.sock}", `tenant.yaml: listen.clientSocket: "a.sock": want the whole path`},
		{"no name and one port", "listen: {agentPort: 9091}", "tenant.yaml: serverNames: a tenant needs a name"},
		{"no name and no port for agents", "listen: {clientPort: 9090, clientSocket: '" + absolute + "'}", "tenant.yaml: serverNames: a tenant needs a name"},
		{"ports alone", "listen: {agentPort: 9091, clientPort: 9090}", ""},
		{"a port and a socket alone", "listen: {agentPort: 9091, clientSocket: '" + absolute + "'}", ""},
		{"identity", "serverNames: [a.example]\nidentities: {clients: [CN=a, 'b c']}", `tenant.yaml: identities.clients[1]: "b c": want a URI, a DNS name, or CN= and a common name`},
		{"good", "serverNames: [a.example]\nstrategies: [destHost, default]\nagentIdentifiers: certificate\npolicy: {allow: ['10.0.0.0/8'], deny: ['10.1.0.0/16']}\nbounds: {connections: 5, dialsPerSecond: 7, memoryMiB: 64, mbitPerSecond: 100}", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ParseSettings([]byte(test.text))
			testutil.ErrorSays(t, err, test.want, "the settings")
			if err != nil && len(err.Error()) > maxReason+100 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			for range 10 { // each that differs would be a line in the log
				_, again := ParseSettings([]byte(test.text))
				testutil.Requires(t, fmt.Sprint(again) == fmt.Sprint(err), "then %v", again)
			}
		})
	}
}

func TestEveryBoundIsChecked(t *testing.T) {
	for field := range reflect.TypeFor[Bounds]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		_, err := ParseSettings(fmt.Appendf(nil, "serverNames: [a.example]\nbounds: {%s: -1}", name))
		testutil.ErrorSays(t, err, "tenant.yaml: bounds."+name+": -1: want a number from 1", "%s", name)
	}
}

func TestServerNamesHaveOneSpelling(t *testing.T) {
	s, err := ParseSettings([]byte("serverNames: [A.Example., a.example, b.example]"))
	testutil.Holds(t, err == nil && slices.Equal(s.ServerNames, []string{"a.example", "b.example"}),
		"got %q, %v", s.ServerNames, err)
}

// Else the peers of a tenant whose settings have a mistake would pass for
// nobody's.
func TestNamesAreKnownEvenIfTheRestIsWrong(t *testing.T) {
	for _, text := range []string{
		"serverNames: [A.example]\nunknown: 1", "serverNames: [a.example]\nbounds: {connections: x}", "serverNames: [a.example]\nstrategies: [x]",
	} {
		s, err := ParseSettings([]byte(text))
		testutil.Holds(t, err != nil && slices.Equal(s.ServerNames, []string{"a.example"}),
			"%q: got %q, %v", text, s.ServerNames, err)
	}
}

// The example in docs/tenants.md can be used, and has every field.
func TestSettingsAreDocumented(t *testing.T) {
	page := string(testutil.Must(os.ReadFile("../../docs/tenants.md"))(t))
	_, example, _ := strings.Cut(page, "```yaml\nserverNames:")
	example, _, found := strings.Cut("serverNames:"+example, "```")
	testutil.Requires(t, found, "docs/tenants.md has no example")
	s := testutil.Must(ParseSettings([]byte(example)))(t)
	var check func(name string, v reflect.Value)
	check = func(name string, v reflect.Value) {
		if v = reflect.Indirect(v); v.Kind() != reflect.Struct {
			testutil.Holds(t, v.IsValid() && !v.IsZero(), "the example has no %s", name)
			return
		}
		for field, value := range v.Fields() {
			if field.IsExported() {
				check(name+"."+field.Name, value)
			}
		}
	}
	check("Settings", reflect.ValueOf(s))
}

func TestTenantNames(t *testing.T) {
	for _, name := range []string{"a", "a-1", strings.Repeat("a", 63)} {
		testutil.Succeeds(t, CheckName(name), "%q", name)
	}
	for _, name := range []string{"", "A", "a.b", "-a", "a-", "a/b", strings.Repeat("a", 64), "a\n"} {
		testutil.Holds(t, CheckName(name) != nil, "%q is accepted", name)
	}
}

// Bounds are what the pages say.
func TestFiguresAreDocumented(t *testing.T) {
	const page, security = "../../docs/tenants.md", "../../docs/security.md"
	testutil.Says(t, page, "every %v s, and at each file of a folder every %v s", int64(lookEvery/time.Second), int64(filesEvery*lookEvery/time.Second))
	testutil.Says(t, page, "up to %v lower-case letters", maxName)
	testutil.Says(t, page, "there are up to %v for each side", maxIdentities)
	testutil.Says(t, page, "After more than %v names of tenants in one run", maxRefused)
	testutil.Says(t, page, "more than %v KiB, here and in the kubeconfig", maxYAML>>10)
	testutil.Says(t, security, "of %v MiB at most, YAML of %v KiB; an error of %v KiB", maxFile>>20, maxYAML>>10, maxReason>>10)
}
