package testutil

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// A default that differs from the table, or comes to equal upstream's, fails.
func TestCheckUpstreamFlags(t *testing.T) {
	flags := pflag.NewFlagSet("sidecar", pflag.ContinueOnError)
	for name, value := range readDefaults("sidecar") {
		flags.String(name, value, "")
	}
	for name, r := range deviations(t, "sidecar") {
		flags.String(name, strings.ReplaceAll(strings.ReplaceAll(r.here, "`", ""), "none", ""), "")
	}
	complaints := func() []string {
		r := &recorder{TB: t}
		CheckUpstreamFlags(r, "sidecar", flags, "sidecar")
		return r.failures
	}
	if said := complaints(); len(said) != 0 {
		t.Fatalf("as the table has it: %q", said)
	}
	for name, says := range map[string]string{
		"serving-port":    "--serving-port is `1` by default, not `8090` as there",
		"serving-address": "--serving-address is told to be `127.0.0.1` here, it is `1`",
	} {
		f := flags.Lookup(name)
		before := f.DefValue
		f.DefValue = "1"
		if said := strings.Join(complaints(), "\n"); !strings.Contains(said, says) {
			t.Errorf("--%s: %q does not say %q", name, said, says)
		}
		f.DefValue = before
	}
}

func TestShownDefaults(t *testing.T) {
	for value, want := range map[string]string{
		"": "none", "[]": "none", "0": "`0`", "0s": "`0s`", "1h0m0s": "`1h`", "1h": "`1h`", "90s": "`1m30s`", "[127.0.0.1]": "`127.0.0.1`", "grpc": "`grpc`",
	} {
		if got := shown(value); got != want {
			t.Errorf("%q is shown as %s, want %s", value, got, want)
		}
	}
}
