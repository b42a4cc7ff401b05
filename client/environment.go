package client

import (
	"flag"
	"fmt"
	"os"

	"konnectivity/adapters/uplink"
)

// FromEnvironment returns Options by the variables that the sidecars know, too:
// KONNECTIVITY_ADDRESS, HOST:PORT, and one for each other flag of AddFlags, such as
// KONNECTIVITY_CA_CERT_PATH for --ca-cert-path. What is not set has the flag's default, and
// one that is set to nothing is a flag that is given nothing. If KONNECTIVITY_SOCKET is set,
// it is the Socket, and no other is looked at. The error names the variable; Options that
// can never work fail in New.
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
