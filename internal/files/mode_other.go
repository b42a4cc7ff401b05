//go:build !unix

package files

// NonBlock does nothing: no pipe has a file's name here.
const NonBlock = 0
