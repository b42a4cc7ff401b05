package unixsocket

import "net"

// maxPath is what the kernel takes (afunix.h, sun_path without its NUL).
const maxPath = 107

// Guarded says that the file's owner and mode do not decide who may connect: its
// folder does.
const Guarded = false

// listenPrivately has nothing to do.
func listenPrivately(path string) (net.Listener, error) { return net.Listen("unix", path) }
