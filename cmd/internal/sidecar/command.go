package sidecar

import (
	"os"

	"github.com/spf13/cobra"

	"konnectivity/internal/cli"
	"konnectivity/internal/logging"
)

// about describes a sidecar in its help.
type about struct {
	name   string
	short  string // completes "Reach a konnectivity server's agents by"
	speaks string
	proxy  string // for curl
}

var programs = map[Front]about{
	SOCKS5: {"konnectivity-socks5-proxy", "SOCKS5", "SOCKS5", "socks5h://127.0.0.1:8090"},
	HTTP:   {"konnectivity-https-proxy", "HTTP proxy", "HTTP and HTTPS proxy requests", "http://127.0.0.1:8090"},
}

// NewCommand returns the program whose --serving-port has this front.
func NewCommand(front Front) *cobra.Command {
	p := programs[front]
	options := &Options{Program: p.name, Front: front}
	logs := new(cli.LogFlags)
	cmd := &cobra.Command{
		Use:   p.name,
		Short: "Reach a konnectivity server's agents by " + p.short,
		Long: p.name + " serves " + p.speaks + " on loopback and carries every connection\n" +
			"through a konnectivity server and its agents. It can start before certificates,\n" +
			"server and cluster are there, and uses them as they appear.",
		Example: "  " + p.name + " --konnectivity-hostname=konnectivity-server-local --serving-port=8090\n" +
			"  curl --proxy " + p.proxy + " https://kubernetes.default.svc",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.New(p.name, os.Stderr)
			if err != nil {
				return err
			}
			defer logging.End(log)
			return run(cmd.Context(), options, log)
		},
	}
	options.AddFlags(cmd)
	cli.AddFlags(cmd, "Logging", logs.AddTo)
	return cmd
}
