//go:build !linux

package agent

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
)

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
