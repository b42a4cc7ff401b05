// Package man writes the man pages of a program. It is a module of its own, so
// that neither the suite nor the release tool needs what it imports, and so that
// a program that links it is otherwise compiled as it is released.
package man

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Write ends the process once it has written a page for cmd and each command
// below it to the folder in the environment's MAN_DIR; without that it does
// nothing. prepare is called first, and adds what the program has on its own.
func Write(cmd *cobra.Command, prepare func()) {
	folder := os.Getenv("MAN_DIR")
	if folder == "" {
		return
	}
	prepare()
	if err := write(cmd, folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// write writes the pages, dated SOURCE_DATE_EPOCH in the local time zone.
func write(cmd *cobra.Command, folder string) error {
	for _, sub := range cmd.Commands() {
		if sub.Name() == "completion" { // what it prints is installed already
			cmd.RemoveCommand(sub)
		}
	}
	cmd.DisableAutoGenTag = true
	return doc.GenManTree(cmd, &doc.GenManHeader{Section: "1", Source: "konnectivity", Manual: "Konnectivity"}, folder)
}
