//go:build !windows

package status

import "os"

// FollowEscapes does nothing: terminals interpret escape sequences by default.
func FollowEscapes(*os.File) {}
