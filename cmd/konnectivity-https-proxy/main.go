// Command konnectivity-https-proxy is a sidecar that gives its pod HTTP proxy
// access to what the agents of a konnectivity server can reach.
package main

import (
	"os"

	"konnectivity/cmd/internal/sidecar"
	"konnectivity/internal/cli"
)

func main() { os.Exit(cli.Main(sidecar.NewCommand(sidecar.HTTP))) }
