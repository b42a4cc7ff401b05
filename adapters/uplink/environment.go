package uplink

import (
	"net"
	"strings"
)

// Variable returns the environment's variable for one of the sidecars' flags that say how
// the server is reached, and its value; ok is false if it is not set. The variable of
// --link-lanes is KONNECTIVITY_LINK_LANES. Both --konnectivity-hostname and
// --konnectivity-port have KONNECTIVITY_ADDRESS, HOST:PORT: Kubernetes sets
// KONNECTIVITY_PORT in the pods beside a Service with the name konnectivity.
func Variable(flag string, lookup func(name string) (string, bool)) (name, value string, ok bool) {
	part, isAddress := strings.CutPrefix(flag, "konnectivity-")
	if !isAddress {
		name = "KONNECTIVITY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		value, ok = lookup(name)
		return name, value, ok
	}
	name = "KONNECTIVITY_ADDRESS"
	value, ok = lookup(name)
	host, port, err := net.SplitHostPort(value)
	switch {
	case err != nil:
		return name, value, ok // which the port's flag refuses
	case part == "hostname":
		return name, host, ok
	default:
		return name, port, ok
	}
}
