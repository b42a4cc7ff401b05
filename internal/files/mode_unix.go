//go:build unix

package files

import "syscall"

// NonBlock, as a flag of os.OpenFile, is not to wait for whoever is to use a pipe's other
// end.
const NonBlock = syscall.O_NONBLOCK
