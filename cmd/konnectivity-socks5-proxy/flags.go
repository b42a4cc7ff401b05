package main

import (
	"os"

	"github.com/spf13/cobra"

	"konnectivity/cmd/internal/sidecar"
	"konnectivity/internal/cli"
	"konnectivity/internal/logging"
)

const name = "konnectivity-socks5-proxy"

func newCommand() *cobra.Command {
	options := &sidecar.Options{Program: name, Front: sidecar.SOCKS5}
	logs := new(logging.Flags)
	cmd := &cobra.Command{
		Use:   name,
		Short: "Reach a konnectivity server's agents by SOCKS5",
		Long: name + " serves SOCKS5 on loopback and carries every connection\n" +
			"through a konnectivity server and its agents. It starts before anything else\n" +
			"is in place and picks up certificates, server and cluster as they appear.",
		Example: "  " + name + " --konnectivity-hostname=konnectivity-server-local --serving-port=8090\n" +
			"  curl --proxy socks5h://127.0.0.1:8090 https://kubernetes.default.svc",
		Args: sidecar.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.New(name, os.Stderr)
			if err != nil {
				return err
			}
			cli.LogLimits(log)
			return sidecar.Run(cmd.Context(), options, log)
		},
	}
	options.AddFlags(cmd)
	cli.AddFlags(cmd, "Logging", logs.AddTo)
	return cmd
}
