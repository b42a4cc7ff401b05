package uplink

import (
	"testing"

	"konnectivity/internal/testutil"
)

func TestVariable(t *testing.T) {
	set := map[string]string{
		"KONNECTIVITY_ADDRESS": "[fd00::1]:8091", "KONNECTIVITY_LINK_LANES": "2", "KONNECTIVITY_SERVER_NAME": "",
		"KONNECTIVITY_PORT": "tcp://10.0.0.1:80", // Kubernetes' for a Service
	}
	lookup := func(name string) (string, bool) { value, ok := set[name]; return value, ok }
	for flag, want := range map[string]struct {
		name, value string
		ok          bool
	}{
		"konnectivity-hostname": {"KONNECTIVITY_ADDRESS", "fd00::1", true},
		"konnectivity-port":     {"KONNECTIVITY_ADDRESS", "8091", true},
		"link-lanes":            {"KONNECTIVITY_LINK_LANES", "2", true},
		"server-name":           {"KONNECTIVITY_SERVER_NAME", "", true},
		"link":                  {"KONNECTIVITY_LINK", "", false},
	} {
		if name, value, ok := Variable(flag, lookup); name != want.name || value != want.value || ok != want.ok {
			t.Errorf("--%s: %s=%q, %v, want %+v", flag, name, value, ok, want)
		}
	}
	set["KONNECTIVITY_ADDRESS"] = "no port"
	_, value, ok := Variable("konnectivity-port", lookup)
	testutil.Equal(t, value, "no port", "of no address")
	testutil.Equal(t, ok, true, "it is set")
}
