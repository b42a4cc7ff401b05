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

// errRestart is the cause of no context.
var errRestart = errors.New("the service is restarted")

// Store is nil on this system.
type Store struct{}

// OpenStore returns nil: there is no systemd.
func OpenStore(logrus.FieldLogger) *Store { return nil }

// ID returns "".
func (s *Store) ID() string { return "" }

// WatchRestart returns ctx.
func WatchRestart(ctx context.Context) (_ context.Context, stop func()) { return ctx, func() {} }

func (s *Store) adopt(*Agent) {}

func (s *Store) keep(*Agent) bool { return false }
