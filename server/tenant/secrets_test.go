package tenant

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// shelf is a Secrets.
type shelf struct {
	err   error
	count int
	held  map[string]map[string][]byte
	vers  map[string]string
}

func (s *shelf) String() string { return "ns" }

func (s *shelf) Names() ([]string, error) { return slices.Collect(maps.Keys(s.held)), s.err }

func (s *shelf) Get(name string) (map[string][]byte, string) { return s.held[name], s.vers[name] }

func (s *shelf) drop(name string) {
	delete(s.held, name)
	delete(s.vers, name)
}

// secretsWorld is a world with a shelf.
type secretsWorld struct {
	*world
	*shelf
}

func newSecretsWorld(t *testing.T) *secretsWorld {
	return &secretsWorld{newWorld(t), &shelf{held: make(map[string]map[string][]byte), vers: make(map[string]string)}}
}

// whole stores a whole tenant under a new version, with changes; "": without that key.
func (w *secretsWorld) whole(name, serverName string, changes ...string) {
	data := map[string][]byte{AgentsCAFile: w.ca.CertPEM, ClientsCAFile: w.ca.CertPEM, SettingsFile: []byte("serverNames: [" + serverName + "]")}
	for change := range slices.Chunk(changes, 2) {
		if data[change[0]] = []byte(change[1]); change[1] == "" {
			delete(data, change[0])
		}
	}
	w.count++
	w.held[name], w.vers[name] = data, fmt.Sprint(w.count)
}

func (w *secretsWorld) open() *Dir { return OpenSecrets(w.shelf, w.log) }

func TestSecretsAreTenants(t *testing.T) {
	w := newSecretsWorld(t)
	w.whole("a", "a.example")
	w.whole(SecretPrefix+"b", "b.example")
	w.whole("c", "wrong.example")
	w.whole(SecretPrefix+"c", "c.example") // which is the same tenant, and the one that counts
	w.whole("not.a.name", "d.example")
	d := w.open()
	for name, want := range map[string]string{"a.example": "a", "b.example": "b", "c.example": "c", "wrong.example": "own", "d.example": "own"} {
		w.finds(d, name, want)
	}
	w.is(d, "not.a.name", StateBroken, "ns/not.a.name: ")
	testutil.Equal(t, len(d.Table().States()), 4, "tenants")
}

// Nothing is read again that has not changed, and the same content under a new
// version is no change.
func TestASecretIsReadOnce(t *testing.T) {
	w := newSecretsWorld(t)
	w.whole("a", "a.example")
	d := w.open()
	was := d.Table().Tenant("a")
	d.entries["a"].read = time.Time{}
	d.Look()
	testutil.Holds(t, d.entries["a"].read.IsZero(), "it was read again")
	w.whole("a", "a.example")
	d.Look()
	testutil.Holds(t, !d.entries["a"].read.IsZero() && d.Table().Tenant("a") == was,
		"a new version was not read, or is another tenant")
}

func TestASecretThatIsWrong(t *testing.T) {
	for _, test := range []struct {
		what, key, text string
		then, state     string // after two looks
		want            string
	}{
		{"a CA that is none", AgentsCAFile, "nothing", "a", StateStale, "ns/konnectivity-tenant-a: agents-ca.crt: no PEM certificate"},
		{"an empty CA", ClientsCAFile, " ", "a", StateStale, "ns/konnectivity-tenant-a: clients-ca.crt: no PEM certificate"},
		{"settings that are wrong", SettingsFile, "serverNames: [a.example]\nbound: 1", "a", StateStale, "ns/konnectivity-tenant-a: tenant.yaml: unknown field"},
		{"a file that is too large", SettingsFile, "serverNames: [a.example]\n" + strings.Repeat("#", maxFile), "a", StateStale, "ns/konnectivity-tenant-a: tenant.yaml: larger than"},
		{"tokens without their kubeconfig", SettingsFile, tokensSpec, "a", StateStale, "ns/konnectivity-tenant-a: kubeconfig: file does not exist"},
		{"no CA", ClientsCAFile, "", "refused", StateBroken, "ns/konnectivity-tenant-a: clients-ca.crt: file does not exist"},
		{"no settings", SettingsFile, "", "refused", StateBroken, "ns/konnectivity-tenant-a: tenant.yaml: file does not exist"},
	} {
		t.Run(test.what, func(t *testing.T) {
			w := newSecretsWorld(t)
			w.whole(SecretPrefix+"a", "a.example")
			w.whole("other", "other.example")
			d := w.open()
			w.whole(SecretPrefix+"a", "a.example", test.key, test.text)
			d.Look()
			w.finds(d, "a.example", "a")
			d.Look()
			w.finds(d, "a.example", test.then)
			w.finds(d, "other.example", "other")
			w.is(d, "a", test.state, test.want)
			w.whole(SecretPrefix+"a", "a.example")
			d.Look()
			w.is(d, "a", StateServing, "")
			for _, line := range w.said.AllEntries() {
				text, _ := line.String()
				testutil.Holds(t, !strings.Contains(text, "CERTIFICATE"), "content is logged: %s", text)
			}
		})
	}
}

// An API that is away changes nothing, however long, and it is said once.
func TestAnAPIThatIsAwayRemovesNobody(t *testing.T) {
	w := newSecretsWorld(t)
	w.whole("a", "a.example")
	d := w.open()
	w.err = errors.New("connection refused")
	w.drop("a") // which nobody can know
	for range 4 {
		d.Look()
	}
	w.finds(d, "a.example", "a")
	testutil.Equal(t, testutil.Lines(w.said, "cannot be listed; all tenants are served as before"), 1, "how often it is said")
	w.err = nil
	d.Look()
	d.Look()
	w.finds(d, "a.example", "refused")
	testutil.Equal(t, testutil.Lines(w.said, "can be listed again"), 1, "how often it is said that it is back")
}

// A server that starts while the API is away has no tenants until it is back.
func TestSecretsThatCannotBeListedYet(t *testing.T) {
	w := newSecretsWorld(t)
	w.err = errors.New("connection refused")
	d := w.open()
	d.Look()
	testutil.Holds(t, !d.Table().Listed() &&
		testutil.Lines(w.said, "cannot be listed; no tenant is served until they can be") == 1, "%v", w.said.AllEntries())
	w.finds(d, "a.example", "own")
	told := 0
	d.OnChange(func(*Table) { told++ })
	w.err = nil
	d.Look()
	testutil.Holds(t, d.Table().Listed() && told == 2, "it is not known that there are none: %d tables were told", told)
	w.whole("a", "a.example")
	d.Look()
	w.finds(d, "a.example", "a")
}
