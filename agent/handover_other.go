//go:build !linux

package agent

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
)

// Handover is nil on this system.
type Handover struct{}

// errLinux is what there is to say of it.
var errLinux = errors.New("agents hand over their connections on Linux only")

// OpenHandover returns an error.
func OpenHandover(string, string, []string, logrus.FieldLogger) (*Handover, error) {
	return nil, errLinux
}

// ID returns "".
func (h *Handover) ID() string { return "" }

// AddPort does nothing.
func (h *Handover) AddPort(Port) {}

// TakePorts returns an error.
func (h *Handover) TakePorts() error { return errLinux }

// Close does nothing.
func (h *Handover) Close() {}

func (h *Handover) setID(string) {}

func (h *Handover) start(context.Context, *Agent) (stop func()) { return func() {} }

func (h *Handover) give(*Agent) {}

func (h *Handover) finish() {}
