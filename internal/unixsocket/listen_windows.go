package unixsocket

import (
	"net"
	"os"
)

// maxPath is what the kernel takes (afunix.h, sun_path without its NUL).
const maxPath = 107

// Guarded reports that the file's owner and mode do not restrict connections: its
// folder does.
const Guarded = false

// chmod has nothing to do, and neither has listenPrivately.
func chmod(string, os.FileMode) error { return nil }

func listenPrivately(path string) (net.Listener, error) { return net.Listen("unix", path) }

// lock does nothing: folders cannot be locked here.
func lock(string) (unlock func()) { return func() {} }
