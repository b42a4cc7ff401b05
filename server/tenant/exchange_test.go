package tenant

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// named is a tenant.yaml with one name.
func named(name string) string { return "serverNames: [" + name + "]\n" }

// listening is a tenant.yaml with ports alone.
func listening(agents, clients int) string {
	return fmt.Sprintf("listen: {agentPort: %d, clientPort: %d}\n", agents, clients)
}

// What tenants give up to one another they all get, and whoever else wants it does not.
func TestTenantsExchangeWhatTheyHave(t *testing.T) {
	folder := t.TempDir()
	socket := func(port int, name string) string {
		return fmt.Sprintf("listen: {agentPort: %d, clientSocket: '%s'}\n", port, filepath.Join(folder, name))
	}
	for _, c := range []struct {
		what          string
		before, after map[string]string // tenant.yaml by tenant; none after: it stays
		stale         string            // those that are served as before
		broken        string
	}{
		{what: "two names",
			before: map[string]string{"a": named("a.example"), "b": named("b.example")},
			after:  map[string]string{"a": named("b.example"), "b": named("a.example")}},
		{what: "ports, to the other side",
			before: map[string]string{"a": listening(1, 2), "b": listening(3, 4)},
			after:  map[string]string{"a": listening(4, 3), "b": listening(2, 1)}},
		{what: "sockets",
			before: map[string]string{"a": socket(1, "a"), "b": socket(2, "b")},
			after:  map[string]string{"a": socket(1, "b"), "b": socket(2, "a")}},
		{what: "identities",
			before: map[string]string{"a": named("a.example") + identified("", "CN=a"), "b": named("b.example") + identified("", "CN=b")},
			after:  map[string]string{"a": named("a.example") + identified("", "CN=b"), "b": named("b.example") + identified("", "CN=a")}},
		{what: "three in a circle, and one that waits for them",
			before: map[string]string{"a": listening(1, 2), "b": listening(3, 4), "c": listening(5, 6), "d": listening(7, 8)},
			after:  map[string]string{"a": listening(3, 2), "b": listening(5, 6), "c": listening(1, 10), "d": listening(7, 4)}},
		{what: "one of three does not let go",
			before: map[string]string{"a": listening(1, 2), "b": listening(3, 4), "c": listening(5, 6)},
			after:  map[string]string{"a": listening(3, 2), "b": listening(5, 4)}, stale: "ab"},
		{what: "two, and one that cannot",
			before: map[string]string{"a": listening(1, 2), "b": listening(3, 4), "c": listening(5, 6), "d": listening(7, 8)},
			after:  map[string]string{"a": listening(1, 8), "b": listening(5, 4), "c": listening(3, 6)}, stale: "a"},
		{what: "two want the same of a third",
			before: map[string]string{"a": listening(1, 2), "b": listening(3, 4), "c": listening(5, 6)},
			after:  map[string]string{"a": listening(5, 2), "b": listening(5, 4), "c": listening(1, 6)}, stale: "b"},
		{what: "a newcomer wants it, too",
			before: map[string]string{"b": listening(3, 4), "c": listening(5, 6)},
			after:  map[string]string{"a": listening(3, 5), "b": listening(5, 4), "c": listening(3, 6)}, broken: "a"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			put := func(spec map[string]string) {
				for name, text := range spec {
					w.tenant(name, name)
					w.put(name, SettingsFile, text)
				}
			}
			put(c.before)
			d := w.open()
			before := d.Table().Tenants()
			put(c.after)
			d.Look()
			for _, s := range d.Table().States() {
				want := StateServing
				switch {
				case strings.Contains(c.broken, s.Name):
					want = StateBroken
				case strings.Contains(c.stale, s.Name):
					want = StateStale
				}
				testutil.Holds(t, s.State == want && (s.Error == "") == (want == StateServing),
					"%s is %s, not %s: %s", s.Name, s.State, want, s.Error)
				changes := want == StateServing && c.after[s.Name] != ""
				testutil.Holds(t, changes != (s.Spec == before[s.Name]), "%s is served by its new files: %v", s.Name, !changes)
			}
		})
	}
}
