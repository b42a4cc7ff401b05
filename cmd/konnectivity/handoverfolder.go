package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
)

// handoverFolderMode keeps other users away from the agents' socket.
const handoverFolderMode = 0o700

// newHandoverFolder returns the command for an init container of agents that run as
// another user.
func newHandoverFolder() *cobra.Command {
	var uid uint32
	cmd := &cobra.Command{
		Use:   "handover-folder PATH",
		Short: "Make the folder of --handover-socket the agents' own",
		Long: "Handover-folder makes a folder that only the agents' user can use, for their\n" +
			"--handover-socket. Kubelet creates a hostPath volume as root's, so an init container\n" +
			"does this, as root with CAP_CHOWN. Where it may not, it says so and succeeds: the\n" +
			"agent then runs without the socket.",
		Example: "  konnectivity handover-folder /run/konnectivity-agents",
		Args:    cli.OneArg("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return handOverFolder(args[0], int(uid), cmd.ErrOrStderr())
		},
	}
	cli.AddFlags(cmd, "Folder flags", func(f *pflag.FlagSet) { f.Uint32Var(&uid, "uid", defaultUID, "user that the agents run as") })
	return cmd
}

func handOverFolder(path string, uid int, warnings io.Writer) error {
	err := os.Mkdir(path, handoverFolderMode)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	for _, step := range []func() error{
		func() error { return os.Chown(path, os.Geteuid(), os.Getegid()) }, // an owner may change the mode
		func() error { return os.Chmod(path, handoverFolderMode) },
		func() error { return os.Chown(path, uid, uid) },
	} {
		if err == nil {
			err = step()
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		_, _ = fmt.Fprintf(warnings, "agents will hand nothing over: %v\n", err)
		return nil
	}
	return err
}
