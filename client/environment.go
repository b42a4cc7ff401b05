package client

import (
	"flag"
	"fmt"
	"os"

	"konnectivity/adapters/uplink"
)

// FromEnvironment returns Options by the variables that the sidecars know, too:
// KONNECTIVITY_ADDRESS, HOST:PORT, and one for each other flag of AddFlags, such as
// KONNECTIVITY_CA_CERT_PATH for --ca-cert-path. A variable that is not set leaves the flag's
// default; an empty one is like the flag with an empty value. If KONNECTIVITY_SOCKET is set,
// Options.Socket is its value, and all others are ignored. The error names the variable.
// New, and not FromEnvironment, refuses Options that cannot work.
func FromEnvironment() (Options, error) {
	if path := os.Getenv("KONNECTIVITY_SOCKET"); path != "" {
		return Options{Socket: path}, nil
	}
	var o Options
	var failed error
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	o.AddFlags(flags)
	flags.VisitAll(func(f *flag.Flag) {
		name, value, ok := uplink.Variable(f.Name, os.LookupEnv)
		if !ok || failed != nil {
			return
		}
		if err := f.Value.Set(value); err != nil {
			failed = fmt.Errorf("client: %s=%q: %w", name, value, err)
		}
	})
	return o, failed
}
