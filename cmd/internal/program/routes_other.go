//go:build !linux

package program

import "context"

// followRoutes does nothing: links whose way has changed fall silent.
func followRoutes(context.Context, func()) {}
