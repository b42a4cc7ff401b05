//go:build !linux

package main

import (
	"context"
	"errors"
)

var errNoLine = errors.New("lines are made of Linux's network namespaces")

func benchLine(context.Context, []string) error { return errNoLine }
func benchScale(context.Context, []string) error {
	return errors.New("bench scale reads Linux's /proc")
}
