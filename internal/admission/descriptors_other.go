//go:build !unix

package admission

// Descriptors returns how many descriptors the process may have open, 0 for no
// limit.
func Descriptors() int { return 0 }
